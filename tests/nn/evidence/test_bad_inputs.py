"""Bad inputs to EvidenceReg: an error that says what to do, or a sound answer."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.optim import SGD

from adareg import EvidenceReg, NonFiniteError
from learning import assert_sound

RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(20, 4, generator=RANDOM)
Y = torch.randn(20, 2, generator=RANDOM)
LABELS = torch.arange(20) % 3


def model(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, outputs))


def classifier(**settings):
    return EvidenceReg(model(), **{"n_samples": 20, "likelihood": "classification"} | settings)


def regression():
    return EvidenceReg(model(2), 20, "regression")


def put(values, one):
    made = values.clone()
    made.view(-1)[2] = one
    return made


BAD_SETTINGS = {
    "n_samples": [0, -1, 2.5, None, "20", float("nan"), float("inf"), True, 20.0],
    "likelihood": ["x", None, 3, "Classification"],
    "loss_scale": [0, -1, float("nan"), float("inf"), "2", None, 1j],
    "layers": ["none", "9", [], ["0", "zz"], None, 3, nn.Linear(4, 5)],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_SETTINGS.items() for value in values]
)
def test_settings_are_checked(name, value):
    with pytest.raises((TypeError, ValueError), match=f"{name}|layer"):
        classifier(**{name: value})


@pytest.mark.parametrize(
    "one", [None, 3, "m", nn.ReLU(), nn.Sequential(), model, [nn.Linear(2, 2)]]
)
def test_what_is_no_model_with_layers_is_refused(one):
    with pytest.raises((TypeError, ValueError), match=r"expected a torch.nn.Module|no layer"):
        EvidenceReg(one, 20, "classification")


BAD_INPUTS = {
    "nan": (put(X, float("nan")), NonFiniteError, "outputs are not finite"),
    "infinite": (put(X, float("inf")), NonFiniteError, "not finite|overflow"),
    "overflowing": (1e38 * X, NonFiniteError, "outputs are not finite"),
    "none": (X[:0], ValueError, "no samples"),
    "an array": (X.numpy(), TypeError, "without a tensor: ndarray"),
    "a list": (X.tolist(), TypeError, "without a tensor"),
    "text": ("abc", TypeError, "without a tensor: str"),
    "no batches": ([], ValueError, "no batch of inputs"),
    "nothing": (None, ValueError, "the inputs of these targets are needed"),
    "too few columns": (X[:, :3], RuntimeError, "shapes cannot be multiplied"),
    "of another dtype": (X.double(), RuntimeError, "same dtype"),
    "integers": (X.long(), RuntimeError, "same dtype"),
}


@pytest.mark.parametrize("make", [classifier, regression])
@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_inputs_change_nothing(case, make):
    bad, error, message = BAD_INPUTS[case]
    reg = make()
    before = {name: prior.row.dense() for name, prior in reg.priors.items()}
    targets = LABELS if make is classifier else Y
    with pytest.raises(error, match=message):
        reg.update(bad, targets[:0] if case == "none" else targets)
    assert all(torch.equal(prior.row.dense(), before[name]) for name, prior in reg.priors.items())
    assert reg.updates == 0


BAD_LABELS = {
    "halves": (LABELS + 0.5, "the label .*5 is none of 3 classes"),
    "negative": (LABELS - 1, "the label -1 is none"),
    "too large": (LABELS + 1, "the label 3 is none"),
    "ignored": (put(LABELS, -100), "the label -100 is none"),
    "nan": (put(LABELS.float(), float("nan")), "the label nan is none"),
    "too few": (LABELS[:9], "20 inputs and 9 targets"),
    "too many": (LABELS.repeat(2), "20 inputs and 40 targets"),
    "one-hot": (one_hot(LABELS), "expected one label 0…2 for each sample"),
    "one": (torch.tensor(1), "targets: .*a number alone"),
    "complex": (LABELS + 0j, "targets: .*complex numbers"),
}
BAD_TARGETS = {
    "nan": (put(Y, float("nan")), "NaN"),
    "infinite": (put(Y, float("inf")), "infinite"),
    "one column": (Y[:, :1], r"shape \(20, 1\) for outputs of \(20, 2\)"),
    "three columns": (torch.ones(20, 3), r"shape \(20, 3\)"),
    "a vector": (Y[:, 0], r"shape \(20,\) for outputs of \(20, 2\)"),
    "flat": (Y.flatten(), "20 inputs and 40 targets"),
    "turned": (Y.T, "20 inputs and 2 targets"),
    "complex": (Y + 1j, "targets: .*complex numbers"),
    "one": (torch.tensor(1.0), "targets: .*a number alone"),
    "nothing": (None, "learns the noise: give update.. the targets"),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_labels_of_no_class_are_refused(case):
    bad, message = BAD_LABELS[case]
    with pytest.raises(ValueError, match=message):
        classifier().update(X, bad)


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_targets_that_do_not_fit_are_refused(case):
    bad, message = BAD_TARGETS[case]
    with pytest.raises((ValueError, NonFiniteError), match=message):
        regression().update(X, bad)


@pytest.mark.parametrize("bad", [LABELS.numpy(), LABELS.tolist(), "a"])
def test_targets_that_are_no_tensor_are_refused(bad):
    with pytest.raises(TypeError, match="targets: expected a tensor"):
        classifier().update(X, bad)


ODD = {
    "one sample": (X[:1], LABELS[:1], Y[:1]),
    "two samples": (X[:2], LABELS[:2], Y[:2]),
    "huge inputs": (1e30 * X, LABELS, Y),
    "tiny inputs": (1e-38 * X, LABELS, Y),
    "no inputs to speak of": (0 * X, LABELS, Y),
    "one sample many times": (X[:1].expand(20, 4), LABELS, Y),
    "huge targets": (X, LABELS.float(), 1e30 * Y),
    "tiny targets": (X, LABELS[:, None], 1e-30 * Y),
    "constant targets": (X, 0 * LABELS, 0 * Y + 3),
    "zero targets": (X, LABELS > 0, 0 * Y),
    "one constant target": (X, LABELS, Y * torch.tensor([1.0, 0.0])),
    "double targets": (X, LABELS.int(), Y.double()),
    "whole targets": (X, LABELS.to(torch.uint8), Y.long()),
    "inputs with a gradient": (X.clone().requires_grad_(), LABELS, Y),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_data_are_survived(case):
    x, labels, y = ODD[case]
    for reg, targets in ((classifier(), labels), (regression(), y)):
        for _ in range(3):
            reg.update(x, targets)
        assert_sound(reg, reg.model)
        assert all(prior.col.dense().isfinite().all() for prior in reg.priors.values())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(value):
    reg = classifier()
    with torch.no_grad():
        reg.model[0].weight[0, 0] = value
    with pytest.raises(NonFiniteError, match="0: the weight"):
        reg.update(X, LABELS)


BAD_ATTACHMENTS = {
    **{f"mode={mode!r}": ({"mode": mode}, "mode") for mode in ("both", None, 3)},
    **{
        f"update_every={every!r}": ({"update_every": every}, "update_every")
        for every in (0, -1, 2.5, "a", float("nan"), True)
    },
    "data of inputs alone": ({"data": X}, r"expected \(inputs, targets\)"),
    "data of three": ({"data": (X, LABELS, LABELS)}, r"expected \(inputs, targets\)"),
    "no data": ({"data": []}, r"expected \(inputs, targets\)"),
    "too few targets": ({"data": (X, LABELS[:5])}, "20 inputs and 5 targets"),
    "arrays": ({"data": (X.numpy(), LABELS.numpy())}, "without a tensor: ndarray"),
}


@pytest.mark.parametrize("case", BAD_ATTACHMENTS)
def test_attachments_that_cannot_work_are_refused(case):
    settings, message = BAD_ATTACHMENTS[case]
    reg = classifier()
    optimizer = SGD(reg.model.parameters(), 0.1)

    def train():
        reg.attach(optimizer, **{"update_every": 1} | settings)
        cross_entropy(reg.model(X), LABELS).backward()
        optimizer.step()

    with pytest.raises((TypeError, ValueError), match=message):
        train()


BAD_STATES = {
    "noise": ["[", "NaN", "-1.0", "0.0", "[1.0, -2.0]"],
    "n_samples": [-1, None],
    "loss_scale": [float("nan"), 0],
    "updates": ["a", None],
    "outputs": ["b", None],
    "steps": ["c", None],
    "priors": [{}, None],
    "found": ["{", None],
    "likelihood": ["regression", None],
    "format": [99, None],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_STATES.items() for value in values]
)
def test_states_that_cannot_be_are_refused_and_change_nothing(name, value):
    reg = classifier()
    reg.update(X, LABELS)
    fresh = classifier()
    with pytest.raises(ValueError):  # noqa: PT011 - each says it in its way
        fresh.load_state_dict({**reg.state_dict(), name: value})
    assert fresh.updates == 0
    assert fresh.noise == classifier().noise
    assert np.isfinite(list(fresh.metrics().values())).all()
