"""Every kind of layer, and all functions of a weight, take a sharded one."""

import torch
from harness import alone_group, check, fsdp
from jobs import DEVICE, assert_alike, make_model
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

import adareg
from adareg import AdaReg
from adareg.core.linalg import whole


class Layers(nn.Module):
    """Every kind of layer; nobody calls it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(3, 6, 3)
        self.grouped = nn.Conv2d(4, 8, 3, groups=2)
        self.back = nn.ConvTranspose2d(4, 6, 3)
        self.embed = nn.Embedding(11, 5)
        self.attention = nn.MultiheadAttention(6, 2)
        self.one = nn.Linear(7, 1)
        self.double()
        self.large = nn.Linear(650, 410)  # so large that its factors are float32


@check(2, 4, cuda=True)
def every_kind_of_layer(expected):
    for mode in ("coupled", "proximal"):
        alone, model = Layers().to(DEVICE), Layers().to(DEVICE)
        fully_shard(model.large)
        fully_shard(model)
        (found, *large), rest = kicked(model, mode, sharded=True)
        (others, *other_large), other_rest = kicked(alone, mode, sharded=False)
        assert_alike(found, others)
        assert_alike([large, rest], [other_large, other_rest], 1e-5)


def kicked(model, mode, sharded):
    """Steps with random gradients, and updates."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    group = None if sharded else alone_group()
    reg = AdaReg(model, "all", strength=1e-3, bounds=(0.1, 10), process_group=group)
    reg.attach(optimizer, mode, update_every=1)
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        for parameter in model.parameters():
            grad = torch.randn(parameter.shape, generator=generator).to(DEVICE, parameter.dtype)
            if sharded:
                grad = distribute_tensor(grad, parameter.device_mesh, parameter.placements)
            parameter.grad = grad
        optimizer.step()
    weights = {name: whole(parameter.detach()) for name, parameter in model.named_parameters()}
    large = weights.pop("large.weight"), weights.pop("large.bias")
    return (weights, *large), (reg.penalty().detach(), reg.metrics())


@check(2, 4)
def functions_of_a_weight_take_a_sharded_one(expected):
    """As model.parameters() has it: sharded along its rows, whichever side is the longer."""
    model = fsdp()
    for name, weight in make_model().named_parameters():
        if weight.ndim == 2:
            found, alone = (everything(w.detach()) for w in (model.get_parameter(name), weight))
            assert_alike(found, alone)


def everything(W):
    """All that can be asked about a weight, and about its priors."""
    found = [adareg.stable_rank(W), adareg.spectral_norm(W), adareg.correlation(W)]
    for rule in ("joint", "alternating", "official"):
        prior = adareg.solve(W, rule, bounds=(0.1, 10))
        prior = adareg.solve(W, rule, bounds=(0.1, 10), prior=prior)
        found += [prior.penalty(W), prior.objective(W), prior.gradient(W), prior.proximal(W, 0.1)]
        for side in (prior.row, prior.col):
            X = torch.eye(side.shape[-1], dtype=W.dtype, device=W.device)
            found += [side.dense(), side.covariance(), side.eigenvalues(), side.logdet(), side @ X]
    return [whole(tensor) for tensor in found]
