"""Curvature and kernel of each layer kind against Jacobians of the model; what stays alone."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.functional import cross_entropy

import adareg
from adareg import EvidenceReg
from adareg.core.evidence import constants
from adareg.core.evidence.constants import DEFAULTS, Constants
from adareg.core.evidence.likelihood import Categorical
from adareg.nn.evidence import tracing
from learning import assert_sound, classes, mlp


def as_matrix(kind, gradient):
    """A weight's gradient as (groups, p, d), written out for each kind of layer."""
    if kind.startswith("grouped"):
        return gradient.reshape(2, gradient.shape[0] // 2, -1)
    if kind.startswith("transposed"):  # (in, out, *kernel)
        return gradient.swapaxes(0, 1).reshape(1, gradient.shape[1], -1)
    if kind in ("embedding", "positions", "embedding used elsewhere"):
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


class UsedElsewhere(nn.Module):
    """An embedding whose weight makes the outputs, too, as that of a language model."""

    def __init__(self):
        super().__init__()
        self.layer, self.inner = nn.Embedding(7, 4), nn.Linear(4, 4)

    def forward(self, tokens):
        return nn.functional.linear(
            self.inner(self.layer(tokens).mean(1)).tanh(), self.layer.weight
        )


class LinearUsedElsewhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.linear(self.layer(x).tanh(), self.layer.weight)


class Turning(nn.Module):
    """A model that works on its batch the other way round."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.layer(x.flip(0)).tanh()).flip(0)


class Sorting(Turning):
    """A model that sorts its batch within."""

    def forward(self, x):
        order = x[:, 0].argsort()
        return self.head(self.layer(x[order]).tanh())[order.argsort()]


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
    "embedding used elsewhere": (UsedElsewhere, (3,), "layer.weight"),
    "linear used elsewhere": (LinearUsedElsewhere, (4,), "layer.weight"),
    "turning": (Turning, (4,), "layer.weight"),
    "sorting": (Sorting, (4,), "head.weight"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_curvature_and_kernel_against_jacobians(kind):
    make, shape, parameter = MODELS[kind]
    model = make().double()
    m = 6
    x = (
        torch.randint(7, (m, *shape))
        if kind.startswith("embedding")
        else torch.randn(m, *shape).double()
    )
    reg = EvidenceReg(model, m, "classification")
    name = next(
        n for n, layer in reg.layers.items() if layer.weight is model.get_parameter(parameter)
    )
    layer, prior = reg.layers[name], reg.priors[name]
    K = model(x).shape[-1]
    v = torch.randn(5, m, K, dtype=torch.float64)
    seen = tracing.collect(
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
    dense = (F if F.shape[-2] == F.shape[-1] else F.mT @ F for F in found)
    A, G = (F.reshape(-1, *F.shape[-2:]).numpy() for F in dense)
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
    reg = EvidenceReg(model, len(x), "classification")
    reg.update(x, y)
    return reg._curvatures


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
    monkeypatch.setattr(tracing, "_one_by_one", None)
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
    reg = EvidenceReg(model, 5, "classification", layers="0")
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, 6, 5, 7, generator=generator, dtype=torch.float64)
    v[1] = v[1, :, :1]

    def kernel(sketch):
        seen = tracing.collect(
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
    reg = EvidenceReg(model, 12, "classification", layers="0")
    found = []
    for large in (2**16, 0):
        generator = torch.Generator().manual_seed(0)
        found.append(
            tracing.collect(
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
    reg = EvidenceReg(model, 40, "classification")
    draw = torch.Generator().manual_seed(0)
    seen = tracing.collect(
        model,
        reg.layers,
        reg.priors,
        classes()[0],
        lambda outputs: directions(outputs, draw),
        draw,
        DEFAULTS,
    )
    assert seen.normalised == expected


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
    reg = EvidenceReg(model, 30, "classification")
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
    EvidenceReg(model, 40, "classification", layers="last").update(*classes())
    assert model.calls == 0


def test_gradients_that_overflow_are_named():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
        model[1].weight.fill_(1e25)
        model[2].weight.fill_(1e25)
    reg = EvidenceReg(model, 40, "classification")
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
    collect = tracing.collect
    monkeypatch.setattr(
        tracing, "collect", lambda *args: (read.append(len(args[3])), collect(*args))[1]
    )
    for model, x in ((Text(), torch.randint(9, (50, 6))), (mlp(4, 3, 20), torch.randn(50, 4))):
        reg = adareg.EvidenceReg(model, 50, "classification")
        reg.update(x, torch.randint(3, (50,)))
        assert_sound(reg, model)
    assert read == [10, 50]


def test_an_embedding_that_renormalises_its_weight_stays_as_it_was():
    model = nn.Sequential(nn.Embedding(7, 4, max_norm=0.5), nn.Flatten(), nn.Linear(12, 3))
    with torch.no_grad():
        model[0].weight.mul_(10)
    before = model[0].weight.detach().clone()
    EvidenceReg(model, 9, "classification").update(torch.randint(7, (9, 3)), torch.arange(9) % 3)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("length", [6, 9])
def test_time_first_inputs_are_refused(length):
    """Also where there are as many times as samples, so that no shape tells."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x):  # (T, N, 4)
            return self.head(self.cell(x).tanh().mean(0))

    reg = EvidenceReg(Recurrent(), 6, "classification")
    with pytest.raises(ValueError, match="first 2 of . inputs give 6 outputs: samples must be alo"):
        reg.update(torch.randn(length, 6, 4))


def test_random_sums_of_a_classifiers_roots_have_its_curvature():
    logits = torch.randn(4, 7, dtype=torch.float64)
    generator, rounds = torch.Generator().manual_seed(0), 2000
    total = torch.zeros(4, 7, 7, dtype=torch.float64)
    for _ in range(rounds):
        v = Categorical().directions(logits, torch.ones(()), 3, generator)
        assert v.shape == (3, 4, 7)
        total += torch.einsum("rmk,rml->mkl", v, v) / rounds
    p = logits.softmax(-1)
    exact = p.diag_embed() - p.unsqueeze(-1) * p.unsqueeze(-2)
    torch.testing.assert_close(total, exact, rtol=0, atol=0.01)


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])  # whose squares float32 does not hold
def test_convolutions_in_float32_are_as_in_float64(size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(120, 3))
    with torch.no_grad():
        model[3].weight.mul_(size)
    x, v = torch.randn(9, 2, 5, 4), torch.randn(5, 9, 3, dtype=torch.float64)
    found = []
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        reg = EvidenceReg(model, 9, "classification", layers="0")
        seen = tracing.collect(
            model,
            reg.layers,
            reg.priors,
            x.to(dtype),
            lambda _: (v[:3], v[3:]),
            torch.Generator(),
            DEFAULTS,
        )
        found.append((*seen.curvatures["0"], seen.kernel))
    for one, other in zip(*found, strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(
            one / other.abs().max(), other / other.abs().max(), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("kind", ["sorting", "tied", "linear used elsewhere"])
def test_how_layers_are_used_is_remembered(monkeypatch, kind):
    make, shape, parameter = MODELS[kind]
    model, x = make().double(), torch.randn(6, *shape).double()
    name = parameter.removesuffix(".weight")
    regs = [EvidenceReg(model, 6, "classification") for _ in range(2)]
    for _ in range(4):
        regs[0].update(x, torch.arange(6) % 3)
    monkeypatch.setattr("adareg.nn.evidence.regularizer.is_power_of_two", lambda _: True)
    for _ in range(4):
        regs[1].update(x, torch.arange(6) % 3)
    for one, other in zip(*(reg._curvatures[name] for reg in regs), strict=True):
        torch.testing.assert_close(one, other)


def test_how_layers_are_used_is_asked_at_the_first_second_fourth_update(monkeypatch):
    model, (x, y), asked = mlp(), classes(), []
    ask = tracing._Recorder.leave_out_unlike
    monkeypatch.setattr(
        tracing._Recorder,
        "leave_out_unlike",
        lambda self, outputs: (asked.append(reg.updates + 1), ask(self, outputs)),
    )
    reg = EvidenceReg(model, len(x), "classification")
    model[0].requires_grad_(False)
    for _ in range(6):
        reg.update(x, y)
    assert asked == [1, 2, 4]
    model[0].requires_grad_(True)  # a layer that was not looked at
    reg.update(x, y)
    assert asked == [1, 2, 4, 7]


def test_fewer_directions_of_more_samples():
    assert [DEFAULTS.draws_of(m) for m in (1, 40, 60, 120, 200, 10**6)] == [10, 10, 10, 5, 3, 3]
    assert Constants(draws=2).draws_of(40) == 2
