"""AdaReg beside the rest of PyTorch: compile, autocast, half precision, devices, tied weights."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam

import adareg
from adareg import AdaReg, EvidenceReg
from training import DEVICES, Tied, assert_close, make_data, make_model, train

# Priors are strong here, so that what they do shows.
pytestmark = pytest.mark.filterwarnings("ignore::adareg.PenaltyWarning")

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_training_step(device):
    """One graph with the penalty inside, still right after the precisions have changed."""
    x, y = make_data(dtype=torch.float64, device=device)
    compiled, eager = make_model(torch.float64, device), make_model(torch.float64, device)
    for model in (compiled, eager):
        reg, optimizer = AdaReg(model, strength=1e-2), SGD(model.parameters(), 0.05)

        def loss(model=model, reg=reg):
            return cross_entropy(model(x), y) + reg.penalty()

        run = (
            torch.compile(loss, fullgraph=True, backend="aot_eager") if model is compiled else loss
        )
        for step in range(6):
            optimizer.zero_grad()
            run().backward()
            optimizer.step()
            if step % 2:
                reg.update()
    assert_close(compiled, eager, rtol=1e-9, atol=1e-11)


def test_compiled_model_with_attached_optimizer():
    data = make_data(dtype=torch.float64)
    model, eager = make_model(torch.float64), make_model(torch.float64)
    compiled = torch.compile(model, backend="eager")
    for m, target in [(compiled, model), (eager, eager)]:
        optimizer = Adam(target.parameters(), 1e-2)
        AdaReg(m, strength=1e-2).attach(optimizer, update_every=3)
        train(m, optimizer, 8, data)
    assert_close(model, eager, rtol=1e-10, atol=1e-12)


def test_an_evidence_update_reaches_a_compiled_penalty():
    """One graph with the penalty inside; each update comes with another strength and prior."""
    x, y = make_data(dtype=torch.float64)
    models, found = [make_model(torch.float64) for _ in range(2)], []
    for model, compiled in zip(models, (True, False), strict=True):
        reg, optimizer = EvidenceReg(model, len(x), "classification"), SGD(model.parameters(), 0.5)

        def loss(model=model, reg=reg):
            return cross_entropy(model(x), y) + reg.penalty()

        run = torch.compile(loss, fullgraph=True, backend="eager") if compiled else loss
        for step in range(1, 9):
            optimizer.zero_grad()
            run().backward()
            optimizer.step()
            if step in (3, 6):
                reg.update(x, y)
        assert reg.strength > 0
        found.append(reg.penalty().item())
    assert_close(*models, rtol=1e-9, atol=1e-11)
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_an_evidence_update_reaches_a_compiled_model():
    x, y = data = make_data(dtype=torch.float64)
    model, eager = make_model(torch.float64), make_model(torch.float64)
    compiled, found = torch.compile(model, backend="eager"), []
    for m, target in [(compiled, model), (eager, eager)]:
        optimizer = SGD(target.parameters(), 0.5)
        reg = EvidenceReg(m, len(x), "classification")
        reg.attach(optimizer, update_every=3, data=(x, y))
        train(m, optimizer, 8, data)
        found.append((reg.penalty().item(), reg.updates))
    assert_close(model, eager, rtol=1e-9, atol=1e-11)
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert found[0][1] == 2


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_training_penalty_in_the_loss(device):
    """Under autocast the penalty and its gradient are those of full precision."""
    x, y = make_data(device=device)
    model = make_model(device=device)
    reg = AdaReg(model, strength=0.1)
    reg.update()
    with torch.autocast(device, dtype=torch.bfloat16):
        cross_entropy(model(x), y)
        inside = reg.penalty()
    (gradient,) = torch.autograd.grad(inside, model[2].weight)
    outside = reg.penalty()
    (expected,) = torch.autograd.grad(outside, model[2].weight)
    assert torch.equal(inside, outside)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_trains(dtype, mode, device):
    model = make_model(dtype, device)
    optimizer = SGD(model.parameters(), 0.05)
    reg = AdaReg(model, layers="all", strength=1e-3, bounds=(0.1, 10))
    reg.attach(optimizer, mode, update_every=4)
    x, y = make_data(dtype=dtype, device=device)
    start = cross_entropy(model(x).float(), y)
    train(model, optimizer, 60, (x, y))
    assert cross_entropy(model(x).float(), y) < 0.7 * start
    assert model[2].weight.dtype == dtype
    assert all(p.row.basis.dtype.itemsize >= 4 for p in reg.priors.values())
    reference = adareg.solve(model[2].weight.detach().double(), bounds=(0.1, 10))
    found = adareg.solve(model[2].weight.detach(), bounds=(0.1, 10))
    torch.testing.assert_close(found.row.dense(), reference.row.dense())


def test_huge_penalty_gradients_do_not_overflow_half_precision():
    model = make_model(torch.float16)
    with torch.no_grad():
        model[2].weight.fill_(0.5)
    reg = AdaReg(model, strength=1e-4, rule="joint")
    with torch.no_grad():
        reg.update()
        model[2].weight.copy_(torch.randn(5, 16))  # off the fitted direction: Ωr W Ωc is near 1e6
    optimizer = SGD(model.parameters(), 1e-3)
    reg.attach(optimizer)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.isfinite(model[2].weight).all()


def test_tied_weights_are_counted_once():
    model = Tied()
    reg = AdaReg(model, layers="all", strength=1.0)
    torch.testing.assert_close(reg.penalty(), model.head.weight.detach().square().sum())
    reg.penalty().backward()
    torch.testing.assert_close(model.head.weight.grad, 2 * model.head.weight.detach())


def test_precisions_follow_the_weights():
    model = make_model()
    reg = AdaReg(model)
    reg.update()
    for device in DEVICES[::-1]:
        model.to(device)
        assert reg.penalty().device.type == device
        assert reg.priors["2"].row.basis.device.type == device
        reg.update()
    model.double()
    reg.update()
    assert reg.penalty().dtype == torch.float64


def test_attention_and_grouped_convolutions_train():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(4, 8, 3, groups=2, padding=1)
            self.up = nn.ConvTranspose1d(8, 8, 2, groups=4)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 5)

        def forward(self, x):
            x = self.up(self.conv(x).relu()).mT
            return self.head(self.attention(x, x, x)[0].mean(1))

    model = Net().double()
    optimizer = Adam(model.parameters(), 1e-2)
    reg = AdaReg(model, layers="all", strength=1e-3)
    reg.attach(optimizer, "proximal", update_every=5)
    data = torch.randn(32, 4, 6).double(), torch.randint(5, (32,))
    train(model, optimizer, 20, data)
    shapes = {name: tuple(prior.shape) for name, prior in reg.priors.items()}
    assert shapes == {
        "conv": (2, 4, 6),
        "up": (4, 2, 4),
        "attention.in_proj_weight": (3, 8, 8),
        "attention.out_proj": (8, 8),
        "head": (5, 8),
    }
    before = reg.penalty().item()
    reg.update()
    objective = sum(
        prior.objective(reg.layers[name].matrix).sum().item() for name, prior in reg.priors.items()
    )
    assert torch.isfinite(torch.tensor([before, objective])).all()
