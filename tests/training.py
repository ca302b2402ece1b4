"""A small deterministic training run, as plain as a user's own loop."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def make_model(dtype=torch.float32, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5)).to(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return model.to(dtype).to(device)


class Tied(nn.Module):
    """An embedding and a head that share their weight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight


def make_data(n=64, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 8, generator=generator, dtype=torch.float64)
    y = (x[:, :5] + 0.3 * torch.randn(n, 5, generator=generator)).argmax(1)
    return x.to(device, dtype), y.to(device)


def train(model, optimizer, steps, data, loss=lambda: 0.0):
    x, y = data
    for _ in range(steps):
        optimizer.zero_grad()
        value = cross_entropy(model(x).float() if x.dtype.itemsize < 4 else model(x), y) + loss()
        value.backward()
        optimizer.step()
    return model


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def assert_equal(model, other):
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def assert_close(model, other, **tolerance):
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, **tolerance)
