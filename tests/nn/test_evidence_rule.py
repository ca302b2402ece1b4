import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, Adam, AdamW

import adareg
from adareg import AdaReg
from adareg.core.evidence import constants
from adareg.core.evidence import update as evidence
from adareg.core.evidence.constants import DEFAULTS, Constants
from adareg.core.evidence.likelihood import LIKELIHOODS, Categorical
from adareg.nn import curvature
from adareg.nn import evidence as rule
from training import train


def mlp(inputs=8, outputs=5, width=16, dtype=torch.float32):
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs)).to(dtype)


def classes(n=40, inputs=8, outputs=5, wrong=0.0):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, inputs, generator=generator)
    y = x[:, :outputs].argmax(1)
    flip = torch.rand(n, generator=generator) < wrong
    return x, torch.where(flip, torch.randint(outputs, (n,), generator=generator), y)


def fit(model, x, y, make=lambda p: Adam(p, 1e-2), steps=60, every=10, loss=cross_entropy):
    likelihood = "classification" if loss is cross_entropy else "regression"
    reg = AdaReg(model, "all", rule="evidence", n_samples=len(x), likelihood=likelihood)
    optimizer = make(model.parameters())
    handle = reg.attach(optimizer, update_every=every, data=(x, y))
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x).float(), y).backward()
        optimizer.step()
    handle.remove()
    return reg


def assert_sound(reg, model):
    metrics = reg.metrics()
    assert all(math.isfinite(value) for value in metrics.values()), metrics
    assert all(p.isfinite().all() for p in model.parameters())
    assert metrics["updates"] > 0
    assert 0 <= metrics["leverage"] <= 1


# Curvature, against Jacobians of the whole model, sample by sample


def as_matrix(kind, gradient):
    """A weight's gradient as (groups, p, d), written out for each kind of layer."""
    if kind.startswith("grouped"):
        return gradient.reshape(2, gradient.shape[0] // 2, -1)
    if kind.startswith("transposed"):  # (in, out, *kernel)
        return gradient.swapaxes(0, 1).reshape(1, gradient.shape[1], -1)
    if kind in ("embedding", "positions"):
        return gradient.T.reshape(1, gradient.shape[1], -1)
    if kind == "attention":
        return gradient.reshape(3, gradient.shape[0] // 3, -1)
    return gradient.reshape(1, gradient.shape[0], -1)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layer(x, x, x)[0].mean(1))


class Doubled(nn.Conv2d):
    """A convolution that is not what it is called."""

    def forward(self, x):
        return super().forward(x).square()


class Twice(nn.Module):
    """A layer that is used two times."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x).tanh())


class Positions(nn.Module):
    """A layer whose output all samples share."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head((x + self.layer(torch.arange(5)[None])).tanh().mean(1))


class Tied(nn.Module):
    """Two layers that have their weight in common."""

    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.layer.weight

    def forward(self, x):
        return self.other(self.layer(x).tanh())


class ByKeyword(nn.Module):
    """Layers whose inputs are keyword arguments, or not all there is to know."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.ConvTranspose1d(2, 3, 2, stride=2), nn.Linear(15, 3)

    def forward(self, x):
        return self.head(input=self.layer(x, output_size=[5]).tanh().flatten(1))


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 3)), (6,), "0.weight"),
    "in place": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)),
        (6,),
        "0.weight",
    ),
    "tokens": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)),
        (5, 4),
        "0.weight",
    ),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(45, 3),
        ),
        (2, 5, 4),
        "0.weight",
    ),
    "dilated": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, (3, 2), dilation=(1, 2), padding="same"),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(60, 3),
        ),
        (2, 5, 4),
        "0.weight",
    ),
    "reflecting": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(60, 3)
        ),
        (2, 5, 4),
        "0.weight",
    ),
    "of another kind": (
        lambda: nn.Sequential(Doubled(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)),
        (2, 5, 4),
        "0.weight",
    ),
    "grouped images": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 2, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3)
        ),
        (4, 5, 4),
        "0.weight",
    ),
    "grouped": (
        lambda: nn.Sequential(
            nn.Conv1d(4, 6, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)
        ),
        (4, 6),
        "0.weight",
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 3, 2, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)
        ),
        (2, 2, 2),
        "0.weight",
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Tanh(), nn.Linear(12, 3)),
        (3,),
        "0.weight",
    ),
    "attention": (Attending, (3, 4), "layer.in_proj_weight"),
    "twice": (Twice, (4,), "layer.weight"),
    "positions": (Positions, (5, 4), "layer.weight"),
    "tied": (Tied, (4,), "layer.weight"),
    "transposed to a size": (ByKeyword, (2, 2), "layer.weight"),
    "by keyword": (ByKeyword, (2, 2), "head.weight"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_curvature_and_kernel_against_jacobians(kind):
    make, shape, parameter = MODELS[kind]
    model = make().double()
    m = 6
    x = torch.randint(7, (m, *shape)) if kind == "embedding" else torch.randn(m, *shape).double()
    reg = AdaReg(model, "all", rule="evidence", n_samples=m)
    name = next(
        n for n, layer in reg.layers.items() if layer.weight is model.get_parameter(parameter)
    )
    layer, prior = reg.layers[name], reg.priors[name]
    K = model(x).shape[-1]
    v = torch.randn(5, m, K, dtype=torch.float64)
    seen = curvature.collect(
        model,
        {name: layer},
        {name: prior},
        x,
        lambda _: (v[:-2], v[-2:]),
        torch.Generator(),
        DEFAULTS,
    )

    def outputs(weight, sample):
        return functional_call(model, {parameter: weight}, (sample[None],))[0]

    weight = model.get_parameter(parameter).detach()
    jacobians = torch.stack([jacrev(outputs)(weight, sample) for sample in x])  # (m, K, *weight)
    rows = torch.einsum("rmk,mk...->rm...", v, jacobians).detach()
    M = np.stack([[as_matrix(kind, one.numpy()) for one in draw] for draw in rows])
    own, shared = M[:-2], M[-2:]
    A = np.einsum("rmgpd,rmgpe->gde", own, own)
    G = np.einsum("rmgpd,rmgqd->gpq", own, own)
    energy = np.einsum("gdd->g", A)[:, None, None, None, None]
    expected = np.einsum("gde,gpq->gdpeq", A, G) / (m * energy)
    found = seen.curvatures[name]
    A, G = (F.reshape(-1, *F.shape[-2:]).numpy() for F in found)
    assert np.einsum("gde,gpq->gdpeq", A, G) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    scale = DEFAULTS.start * weight.numel() / (M.shape[2] * M.shape[3])  # precision: fan-in · START
    flat = shared.reshape(2, m, -1)
    assert seen.kernel.numpy() == pytest.approx(sum(r @ r.T for r in flat) / scale, rel=1e-9)


def directions(outputs, generator):
    """Of a classifier: each sample's own, and those they share."""
    one, draws = torch.ones(()), DEFAULTS.draws
    own = Categorical().directions(outputs, one, draws, generator)
    return own, Categorical().shared_directions(outputs, one, draws, generator)


def curvatures(model, x, y):
    reg = AdaReg(model, "all", rule="evidence", n_samples=len(x))
    reg.update(x, y)
    return reg.evidence._curvatures


@pytest.mark.parametrize("kind", ["convolution", "tokens", "twice"])
def test_parametrized_weights_have_the_curvature_of_plain_ones(kind):
    torch.manual_seed(0)
    make, shape, parameter = MODELS[kind]
    model, x = make().double(), torch.randn(6, *shape).double()
    name = parameter.removesuffix(".weight")
    plain = curvatures(model, x, torch.zeros(6))[name]
    nn.utils.parametrizations.weight_norm(model.get_submodule(name))
    for one, other in zip(curvatures(model, x, torch.zeros(6))[name], plain, strict=True):
        torch.testing.assert_close(one, other)


def test_parametrized_linear_layers_are_differentiated_at_once(monkeypatch):
    monkeypatch.setattr(curvature, "_one_by_one", None)
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[0])
    assert curvatures(model, *classes()).keys() == {"0", "2"}


@pytest.mark.parametrize("more", [{"sparse": True}, {"max_norm": 9.0}])
def test_embeddings_that_do_more_to_their_weight(more):
    torch.manual_seed(0)
    plain, other = nn.Embedding(7, 4), nn.Embedding(7, 4, **more)
    other.weight = plain.weight
    head, tokens = nn.Linear(12, 3), torch.randint(7, (9, 3))
    found = [
        curvatures(nn.Sequential(layer, nn.Flatten(), head), tokens, torch.zeros(9))["0"]
        for layer in (plain, other)
    ]
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_a_sketch_of_many_directions_has_their_second_moments():
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 7)).double()
    x = torch.randn(5, 2, 5, dtype=torch.float64)
    reg = AdaReg(model, "0", rule="evidence", n_samples=5)
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, 6, 5, 7, generator=generator, dtype=torch.float64)
    v[1] = v[1, :, :1]

    def kernel(sketch):
        seen = curvature.collect(
            model,
            reg.layers,
            reg.priors,
            x,
            lambda _: (v[0], v[1]),
            generator,
            Constants(sketch=sketch),
        )
        A, G = seen.curvatures["0"]
        return seen.kernel, A.diagonal().sum() * G.diagonal().sum()

    exact = kernel(6)
    rounds = [kernel(2) for _ in range(400)]
    for mean, one in zip(
        (torch.stack(x).mean(0) for x in zip(*rounds, strict=True)), exact, strict=True
    ):
        torch.testing.assert_close(mean, one, rtol=0, atol=0.1 * one.abs().max().item())


def test_a_large_embedding_is_exact_for_one_token():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(4, 3)).double()
    tokens = torch.randint(9, (12, 1))
    reg = AdaReg(model, "0", rule="evidence", n_samples=12)
    found = []
    for large in (2**16, 0):
        generator = torch.Generator().manual_seed(0)
        found.append(
            curvature.collect(
                model,
                reg.layers,
                reg.priors,
                tokens,
                lambda o, g=generator: directions(o, g),
                generator,
                Constants(large_embedding=large),
            )
        )
    torch.testing.assert_close(found[0].kernel, found[1].kernel)
    for one, other in zip(found[0].curvatures["0"], found[1].curvatures["0"], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("norm", "expected"),
    [(nn.BatchNorm1d(16), {"0"}), (nn.LayerNorm(16), {"0"}), (nn.Tanh(), set())],
)
def test_layers_before_normalisation_are_found(norm, expected):
    model = nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), nn.Linear(16, 5))
    reg = AdaReg(model, "all", rule="evidence", n_samples=40)
    draw = torch.Generator().manual_seed(0)
    seen = curvature.collect(
        model,
        reg.layers,
        reg.priors,
        classes()[0],
        lambda outputs: directions(outputs, draw),
        draw,
        DEFAULTS,
    )
    assert seen.normalised == expected


# What an update leaves alone


@pytest.mark.parametrize("outputs", [5, 12])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_default_device_does_not_matter(outputs, likelihood):
    x = torch.randn(310, 2, 4)
    y = torch.zeros(310) if likelihood == "classification" else torch.randn(310, outputs)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(8, outputs))
    reg = AdaReg(model, "all", rule="evidence", n_samples=310, likelihood=likelihood)
    with torch.device("meta"):
        reg.update(x, y)
        reg.correlations("2")
    assert_sound(reg, model)


def test_update_leaves_everything_else_alone():
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3),
        nn.BatchNorm1d(4),
        nn.Dropout(0.5),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    model[2].eval()  # a flag of its own
    x, y = torch.randn(30, 2, 6), torch.randint(3, (30,))
    cross_entropy(model(x), y).backward()
    reg = AdaReg(model, "all", rule="evidence", n_samples=30)
    before = copy.deepcopy(model.state_dict())
    grads = [p.grad.clone() for p in model.parameters()]
    flags = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    with torch.no_grad():
        reg.update(x, y)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_buffer_that_is_replaced_comes_back():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(8, 5)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls = self.calls + 1
            return super().forward(x)

    model = Counting()
    AdaReg(model, rule="evidence", n_samples=40).update(*classes())
    assert model.calls == 0


def test_layers_that_are_frozen_later_are_left_out():
    x, y = classes()
    model = mlp()
    reg = fit(model, x, y)
    before = reg.priors["0"].col.dense()
    model[0].requires_grad_(False)
    reg.update(x, y)
    assert torch.equal(reg.priors["0"].col.dense(), before)
    assert reg.metrics()["gamma"] == reg.metrics()["2/gamma"]
    assert_sound(reg, model)
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="0, 2: the weights are frozen"):
        reg.update(x, y)


def test_updates_are_repeatable_and_read_a_loader_without_touching_the_random_state():
    x, y = classes()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=False
    )
    model = mlp()
    made = []
    for data in ((x, y), loader):
        reg = AdaReg(model, "all", rule="evidence", n_samples=40)
        handle = reg.attach(Adam(model.parameters()), data=data)
        random = torch.get_rng_state()
        reg.update()
        assert torch.equal(torch.get_rng_state(), random)
        handle.remove()
        made.append(reg.priors["0"].col.dense())
    assert torch.equal(*made)


@pytest.mark.parametrize("form", ["tuple", "dict", "batches"])
def test_forms_of_inputs(form):
    x, y = classes()
    model = mlp()
    forms = {"tuple": (x,), "dict": {"input": x}, "batches": [x[:25], x[25:]]}
    priors = []
    for inputs in (x, forms[form]):
        reg = AdaReg(model, "all", rule="evidence", n_samples=40)
        reg.update(inputs, y)
        priors.append(reg.priors["2"].row.dense())
    torch.testing.assert_close(*priors)


def test_targets_of_many_batches():
    x, y = classes(1000)
    reg = AdaReg(mlp(), "all", rule="evidence", n_samples=1000)
    reg.update(list(x.split(64)), y)
    assert reg.metrics()["updates"] == 1
    with pytest.raises(TypeError, match="targets: expected a tensor, got list"):
        reg.update(x, y.tolist())


def test_more_samples_than_there_are():
    """Such as augmented ones: what n samples determine cannot be more than they are."""
    x, _ = classes(200)
    model = mlp(outputs=1)
    reg = AdaReg(model, "all", rule="evidence", n_samples=10, likelihood="regression")
    reg.update(x, x[:, :1])
    assert_sound(reg, model)


# Scaling: what is added to the loss


def test_strength_is_the_priors_share_of_the_loss():
    x, y = classes()
    model = mlp()
    reg = AdaReg(model, "all", rule="evidence", n_samples=40, loss_scale=2.0)
    assert reg.strength == 0  # nothing has been learned yet
    train(model, Adam(model.parameters(), 1e-2), 30, (x, y))
    reg.update(x, y)
    assert not any("clipped" in key for key in reg.metrics())  # there are no bounds
    assert reg.strength == pytest.approx(2 * reg.metrics()["noise"] / (2 * 40))
    targets = torch.randn(40, 5)
    reg = fit(mlp(), x, targets, loss=mse_loss)
    noise = reg.metrics()["noise"]
    assert 0 < noise <= targets.var(0).mean() * 1.01
    assert reg.strength == pytest.approx(noise / (40 * 5))


def test_scale_of_the_targets_does_not_matter():
    x, _ = classes(60)
    y = x[:, :2] + 0.5 * torch.randn(60, 2)
    errors = []
    for factor in (1.0, 100.0):
        torch.manual_seed(0)
        model = nn.Linear(8, 2).double()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(factor)
        reg = AdaReg(model, "all", rule="evidence", n_samples=60, likelihood="regression")
        reg.update(x.double(), factor * y.double())
        errors.append(reg.metrics()["noise"] / factor**2)
    assert errors[0] == pytest.approx(errors[1], rel=0.2)  # the start is a share of the fan-in


# Attached


def test_labels_are_read_off_the_gradient():
    x, y = classes()
    model = mlp()
    reg = AdaReg(model, "all", rule="evidence", n_samples=40)
    handle = reg.attach(Adam(model.parameters()))
    for start in (0, 20):
        (7 * cross_entropy(model(x[start : start + 20]), y[start : start + 20])).backward()
    inputs, labels = reg._evidence.observed()
    assert torch.equal(inputs[0], x)
    assert torch.equal(labels, y)
    model.eval()
    model(x)  # an evaluation is not training data
    assert len(reg._evidence.observed()[1]) == 40
    handle.remove()
    assert not model._forward_hooks


def test_attached_updates_are_few_and_ever_rarer(monkeypatch):
    monkeypatch.setattr(constants, "DEFAULTS", Constants(first=5))
    x, y = classes()
    model = mlp()
    reg = AdaReg(model, "all", rule="evidence", n_samples=40)
    optimizer = SGD(model.parameters(), 0.1)
    reg.attach(optimizer)
    at = []
    for step in range(60):
        before = reg.metrics()["updates"]
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        if reg.metrics()["updates"] > before:
            at.append(step + 1)
    assert at == [5, 7, 10, 13, 17, 23, 30, 39, 51]


# State


def test_state_goes_on_exactly():
    x, y = classes()
    model = mlp()
    reg = fit(model, x, y, steps=20)
    stored = io.BytesIO()
    torch.save(reg.state_dict(), stored)
    stored.seek(0)
    other = AdaReg(model, "all", rule="evidence", n_samples=7)
    other.load_state_dict(torch.load(stored, weights_only=True))
    for one in (other, pickle.loads(pickle.dumps(reg)), copy.deepcopy(reg)):
        assert one.metrics() == pytest.approx(reg.metrics(), nan_ok=False)
        assert one.strength == reg.strength
    for one in (reg, other):
        one.update(x, y)
    for name in reg.priors:
        assert torch.equal(reg.priors[name].col.dense(), other.priors[name].col.dense())


# What it learned


def test_correlations_have_intervals():
    x, y = classes(2000, wrong=0.3)
    model = nn.Sequential(nn.Linear(8, 5))
    reg = fit(model, x, y, steps=300, every=50)
    found = reg.correlations("0")
    assert found.mean.shape == (5, 5)
    assert (found.low <= found.mean + 1e-6).all()
    assert (found.mean <= found.high + 1e-6).all()
    assert found.mean.diagonal().tolist() == pytest.approx([1] * 5, abs=1e-5)
    weight = model[0].weight.detach()
    estimate = adareg.correlation(weight - weight.mean(0))
    inside = (found.low - 1e-6 <= estimate) & (estimate <= found.high + 1e-6)
    assert inside.all()
    assert (found.high - found.low)[0, 1] < 0.6
    assert torch.equal(reg.correlations("0").low, found.low)
    with pytest.raises(ValueError, match="no layer"):
        reg.correlations("nowhere")
    with pytest.raises(ValueError, match="no posterior"):
        AdaReg(model).correlations("0")
    with pytest.raises(RuntimeError, match="call update"):
        AdaReg(model, rule="evidence", n_samples=9).correlations("0")


def test_correlations_of_a_large_layer_take_fewer_draws(monkeypatch):
    x, y = classes(60)
    model = nn.Sequential(nn.Linear(8, 5))
    reg = fit(model, x, y, steps=50, every=50)
    many = reg.correlations("0")
    drawn = []
    sample = evidence.sample
    monkeypatch.setattr(evidence, "sample", lambda *a: drawn.append(sample(*a)) or drawn[-1])
    monkeypatch.setattr(rule, "_ENTRIES", 40)
    few = reg.correlations("0")
    assert sum(map(len, drawn)) == 100
    torch.testing.assert_close(few.mean, many.mean, rtol=0, atol=0.2)
    reg.evidence.constants = Constants(widest=4)
    with pytest.raises(ValueError, match="0 has 5 rows: correlations are drawn between at most 4"):
        reg.correlations("0")


def test_log_evidence_prefers_the_model_that_made_the_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 8, generator=generator)
    y = x[:, :1] + 0.3 * torch.randn(200, 1, generator=generator)
    found = {}
    for name, columns in (("right", slice(0, 4)), ("wrong", slice(4, 8))):
        model = nn.Linear(4, 1)
        reg = fit(model, x[:, columns], y, steps=200, every=20, loss=mse_loss)
        found[name] = reg.metrics()["log_evidence"]
    assert found["right"] > found["wrong"] + 50


# Robustness


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_penalty_waits_until_something_is_learned_and_then_stays(likelihood):
    x, labels = classes()
    targets = nn.functional.one_hot(labels).float()
    y = labels if likelihood == "classification" else targets
    model = nn.Linear(8, 5)
    reg = AdaReg(model, "all", rule="evidence", n_samples=40, likelihood=likelihood)
    solution = torch.linalg.lstsq(x, targets - targets.mean(0)).solution.mT
    waiting = []
    for known in (0.0, 0.001, 1.0, 0.0):  # a share of what can be known by a linear map
        with torch.no_grad():
            model.weight.copy_(known * solution)
            model.bias.copy_(targets.mean(0).log() if y is labels else targets.mean(0))
        reg.update(x, y)
        waiting.append(reg.metrics()["waiting"])
        assert (reg.strength == 0) == bool(waiting[-1])
    assert waiting == [1, 1, 0, 0]


def test_a_deep_network_is_not_shrunk_before_it_has_learned_anything():
    """Its gradients are so small at first that Adam would follow any penalty."""
    x, y = classes(60)
    sizes = []
    for regularized in (False, True):
        torch.manual_seed(0)
        model = deep(16)
        optimizer = Adam(model.parameters(), 1e-3)
        if regularized:
            reg = AdaReg(model, "all", rule="evidence", n_samples=60)
            reg.attach(optimizer, data=(x, y))
        train(model, optimizer, 120, (x, y))
        sizes.append([p.norm() for p in model.parameters() if p.ndim == 2])
    assert reg.metrics()["updates"] > 2
    assert reg.metrics()["waiting"] == 1
    torch.testing.assert_close(*sizes, rtol=1e-6, atol=0)


def deep(layers):
    hidden = [part for _ in range(layers - 2) for part in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *hidden, nn.Linear(16, 5))


CASES = {
    "ten samples": lambda: (mlp(), *classes(10)),
    "more samples than are looked at": lambda: (mlp(), *classes(1000)),
    "one layer": lambda: (nn.Sequential(nn.Linear(8, 5)), *classes()),
    "fifty layers": lambda: (deep(50), *classes(20)),
    "batch norm": lambda: (
        nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5)),
        *classes(),
    ),
    "dropout": lambda: (
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 5)),
        *classes(),
    ),
    "duplicated data": lambda: (mlp(), *(t.repeat_interleave(10, 0) for t in classes(5))),
    "constant features": lambda: (mlp(), torch.ones(40, 8), classes()[1]),
    "zero features": lambda: (mlp(), torch.zeros(40, 8), classes()[1]),
    "missing classes": lambda: (mlp(), classes()[0], torch.zeros(40, dtype=torch.long)),
    "wrong labels": lambda: (mlp(), *classes(40, wrong=0.5)),
    "huge inputs": lambda: (mlp(), 1e4 * classes()[0], classes()[1]),
    "bfloat16": lambda: (mlp(dtype=torch.bfloat16), classes()[0].bfloat16(), classes()[1]),
    "float64": lambda: (mlp(dtype=torch.float64), classes()[0].double(), classes()[1]),
}


@pytest.mark.parametrize("case", CASES)
def test_robust(case, one_thread):
    model, x, y = CASES[case]()
    assert_sound(fit(model, x, y, steps=40), model)


@pytest.mark.parametrize(
    "make",
    [lambda p: AdamW(p, 1e-2), lambda p: SGD(p, 0.1, momentum=0.9)],
    ids=["AdamW", "SGD"],
)
def test_optimizers(make):
    x, y = classes(80)
    model = mlp()
    reg = fit(model, x, y, make, steps=150)
    assert_sound(reg, model)
    assert (model(x).argmax(1) == y).float().mean() > 0.8


@pytest.mark.parametrize(
    "y", [torch.zeros(30, 2), torch.ones(30, 2), None], ids=["zeros", "ones", "line"]
)
def test_regression_without_noise_or_signal(y, one_thread):
    x = torch.randn(30, 8)
    targets = x[:, :2] * 3 if y is None else y
    model = mlp(outputs=2)
    assert_sound(fit(model, x, targets, steps=100, loss=mse_loss), model)


@pytest.mark.parametrize("case", ["unscaled inputs", "one value"])
def test_regression_whose_kernel_is_huge(case):
    """More samples than features, so that it is singular as well."""
    x = torch.randn(40, 8)
    if case == "unscaled inputs":
        x[:, 0] = 1.7e9 + 1e5 * x[:, 0]
    y = torch.ones(40, 1) if case == "one value" else torch.randn(40, 1)
    model = nn.Linear(8, 1)
    assert_sound(fit(model, x, y, lambda p: Adam(p, 1e-9), loss=mse_loss), model)


def test_does_not_fade_when_the_data_can_be_fitted_exactly(one_thread):
    """Sixty samples of a line with as much noise as signal: plain training ends at their noise."""
    errors = {}
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1060, 10, generator=generator)
    y = x[:, :1] + torch.randn(1060, 1, generator=generator)
    for name in ("none", "evidence"):
        torch.manual_seed(0)
        model = mlp(10, 1, 64)
        if name == "evidence":
            reg = fit(model, x[:60], y[:60], lambda p: Adam(p, 3e-3), 600, 40, mse_loss)
            assert 0.3 < reg.metrics()["noise"] < 2
        else:
            optimizer = Adam(model.parameters(), 3e-3)
            for _ in range(600):
                optimizer.zero_grad()
                mse_loss(model(x[:60]), y[:60]).backward()
                optimizer.step()
        errors[name] = mse_loss(model(x[60:]), y[60:]).item()
    assert errors["evidence"] < 0.75 * errors["none"]


def test_dispersion_tells_wrong_labels_from_right_ones(one_thread):
    noise = [
        fit(mlp(), *classes(200, wrong=wrong), steps=200, every=20).metrics()["noise"]
        for wrong in (0.0, 0.5)
    ]
    assert noise[1] > 2 * noise[0]


# Errors


def test_errors_say_what_to_do():
    model = mlp()
    x, y = classes()
    with pytest.raises(ValueError, match="size of the training set"):
        AdaReg(model, rule="evidence")
    with pytest.raises(ValueError, match="likelihood='poisson'"):
        AdaReg(model, rule="evidence", n_samples=5, likelihood="poisson")
    with pytest.raises(ValueError, match="loss_scale=0"):
        AdaReg(model, rule="evidence", n_samples=5, loss_scale=0)
    with pytest.raises(ValueError, match="rule='evidence' alone"):
        AdaReg(model, likelihood="regression")
    with pytest.raises(ValueError, match="weights alone"):
        AdaReg(model).update(x)
    with pytest.raises(ValueError, match="data is used"):
        AdaReg(model).attach(Adam(model.parameters()), data=(x, y))
    reg = AdaReg(model, "all", rule="evidence", n_samples=40)
    with pytest.raises(ValueError, match="learns the strength"):
        reg.strength = 1.0
    with pytest.raises(RuntimeError, match="needs training inputs: call update.inputs., or attach"):
        reg.update()
    with pytest.raises(ValueError, match="needs the inputs of these targets"):
        reg.update(targets=y)
    with pytest.raises(ValueError, match="as many of each"):
        reg.update(x, y[:3])
    with pytest.raises(ValueError, match="the label 7 is none of 5 classes; expected integers 0…4"):
        reg.update(x, torch.where(y == 2, 7, y))
    with pytest.raises(ValueError, match="the label 0.5 is none of 5 classes"):
        reg.update(x, y + 0.5 * (y == 0))
    with pytest.raises(ValueError, match="targets of shape .40, 3. .*expected one label 0…4"):
        reg.update(x, torch.zeros(40, 3))
    with pytest.raises(ValueError, match="no batch"):
        reg.update([])
    handle = reg.attach(Adam(model.parameters()), update_every=1)
    with pytest.raises(RuntimeError, match="no training batch was seen: Sequential was not called"):
        reg.update()
    regression = AdaReg(model, "all", rule="evidence", n_samples=40, likelihood="regression")
    with pytest.raises(ValueError, match="give update\\(\\) the targets"):
        regression.update(x)
    handle.remove()
    regression.attach(Adam(model.parameters()))
    with pytest.raises(ValueError, match="needs targets"):
        model(x)
    with pytest.raises(ValueError, match="targets of shape"):
        regression.update(x, torch.zeros(40, 3))
    images = AdaReg(nn.Conv2d(1, 2, 1), rule="evidence", n_samples=4)
    with pytest.raises(ValueError, match="outputs have shape"):
        images.update(torch.zeros(4, 1, 2, 2))


@pytest.mark.parametrize("unused", [{"strength": 1e-3}, {"strength": "auto"}, {"bounds": (1, 1)}])
def test_what_the_rule_would_not_look_at_is_refused(unused):
    (name,) = unused
    with pytest.raises(ValueError, match=f"rule='evidence'.*; leave {name} out"):
        AdaReg(mlp(), rule="evidence", n_samples=40, **unused)
    AdaReg(mlp(), "last", 1e-4, [1e-3, 1e3], "evidence", n_samples=40)  # the defaults, in words


def test_its_repr_shows_what_it_uses():
    reg = AdaReg(mlp(), "last", rule="evidence", n_samples=40)
    shapes = {name: tuple(layer.blank.shape) for name, layer in reg.layers.items()}
    assert repr(reg) == (
        f"AdaReg(rule='evidence', n_samples=40, likelihood='classification', layers={shapes})"
    )


def test_not_finite_keeps_the_priors():
    model = mlp()
    x, y = classes()
    reg = AdaReg(model, "all", rule="evidence", n_samples=40)
    reg.update(x, y)
    before = reg.priors["0"].col.dense()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(adareg.NonFiniteError, match="0: the weight has NaN"):
        reg.update(x, y)
    assert torch.equal(reg.priors["0"].col.dense(), before)
    assert reg.metrics()["updates"] == 1


def test_gradients_that_overflow_are_named():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
        model[1].weight.fill_(1e25)
        model[2].weight.fill_(1e25)
    reg = AdaReg(model, "all", rule="evidence", n_samples=40)
    with pytest.raises(adareg.NonFiniteError, match="0: the gradients"):
        reg.update(*classes())
    assert reg.metrics()["updates"] == 0


def test_linear_layers_in_a_text_are_looked_at_with_fewer_samples(monkeypatch):
    """They need a gradient of their weight for each sample; those of one vector do not."""

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.inner, self.head = (
                nn.Embedding(9, 4),
                nn.Linear(4, 20),
                nn.Linear(20, 3),
            )

        def forward(self, tokens):
            return self.head(self.inner(self.words(tokens)).mean(1))

    fitting = Constants(entries=2 * DEFAULTS.sketch * 80 * 10)
    monkeypatch.setattr(constants, "DEFAULTS", fitting)
    read = []
    collect = curvature.collect
    monkeypatch.setattr(
        curvature, "collect", lambda *args: (read.append(len(args[3])), collect(*args))[1]
    )
    for model, x in ((Text(), torch.randint(9, (50, 6))), (mlp(4, 3, 20), torch.randn(50, 4))):
        reg = adareg.AdaReg(model, "all", rule="evidence", n_samples=50)
        reg.update(x, torch.randint(3, (50,)))
        assert_sound(reg, model)
    assert read == [10, 50]
