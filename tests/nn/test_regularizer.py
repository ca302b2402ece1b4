import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

import adareg
import oracles
from adareg import AdaReg
from training import assert_close, assert_equal, make_data, make_model, train


def groups(model, **last):
    """The last layer's weight in a group of its own."""
    *others, weight, bias = model.parameters()
    return [{"params": [*others, bias]}, {"params": [weight], **last}]


def test_defaults_are_the_papers():
    reg = AdaReg(make_model())
    assert (reg.strength, reg.bounds, reg.rule) == (1e-4, (1e-3, 1e3), "alternating")
    assert list(reg.priors) == ["2"]


@pytest.mark.parametrize("make", [lambda p: SGD(p, 0.1, momentum=0.9), lambda p: Adam(p, 1e-2)])
def test_identity_prior_is_weight_decay(make):
    data = make_data(dtype=torch.float64)
    with_penalty, with_decay = make_model(torch.float64), make_model(torch.float64)
    reg = AdaReg(with_penalty, strength=0.003)
    train(with_penalty, make(with_penalty.parameters()), 50, data, reg.penalty)
    train(with_decay, make(groups(with_decay, weight_decay=2 * 0.003)), 50, data)
    assert_close(with_penalty, with_decay, rtol=1e-12, atol=1e-14)


def test_identity_prior_is_weight_decay_to_the_last_bit():
    # With a power of two the product λ·W is exact, so both sums are rounded alike.
    data = make_data()
    with_penalty, with_decay = make_model(), make_model()
    reg = AdaReg(with_penalty, strength=2**-8)
    train(with_penalty, Adam(with_penalty.parameters(), 1e-2), 50, data, reg.penalty)
    train(with_decay, Adam(groups(with_decay, weight_decay=2**-7), 1e-2), 50, data)
    assert_equal(with_penalty, with_decay)


def test_training_is_algorithm_1():
    """Blocks of gradient descent and closed-form updates, against NumPy and plain autograd."""
    x, y = make_data(dtype=torch.float64)
    model, reference = make_model(torch.float64), make_model(torch.float64)
    reg = AdaReg(model, strength=1e-3, bounds=(0.1, 10.0))
    optimizer, expected = SGD(model.parameters(), 0.1), SGD(reference.parameters(), 0.1)
    row, col, W = torch.eye(5).double(), torch.eye(16).double(), reference[2].weight

    def penalty():
        return 1e-3 * torch.trace(row @ W @ col @ W.mT)

    for _ in range(4):
        train(model, optimizer, 10, (x, y), reg.penalty)
        reg.update()
        train(reference, expected, 10, (x, y), penalty)
        sides = oracles.alternating(W.detach().numpy(), 0.1, 10.0, col=_eigen(col))
        row, col = (torch.from_numpy(oracles.dense(side)) for side in sides)
    assert_close(model, reference, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(reg.priors["2"].row.dense(), row, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(reg.priors["2"].col.dense(), col, rtol=1e-8, atol=1e-10)


def _eigen(matrix):
    e, Q = torch.linalg.eigh(matrix)
    return Q.numpy(), e.numpy()


def test_penalty_sums_layers_and_groups():
    model = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(6, 3))
    reg = AdaReg(model, layers="all", strength=0.5)
    reg.update()
    expected = 0
    for name, W in [("0", model[0].weight.reshape(2, 3, 18)), ("2", model[2].weight)]:
        row, col = reg.priors[name].row.dense(), reg.priors[name].col.dense()
        W = W.double()
        expected += 0.5 * (row @ W @ col * W).sum()
    torch.testing.assert_close(reg.penalty(), expected.float())


def test_groups_have_priors_of_their_own():
    conv = nn.Conv2d(4, 6, 3, groups=2)
    reg = AdaReg(conv, rule="joint")
    reg.update()
    for group, weight in enumerate(conv.weight.detach().reshape(2, 3, 18)):
        alone = adareg.solve(weight, "joint").col.dense()
        torch.testing.assert_close(reg.priors["weight"].col.dense()[group], alone)


def test_the_model_is_untouched():
    model = make_model()
    keys, attributes = list(model.state_dict()), {m: set(vars(m)) for m in model.modules()}
    reg = AdaReg(model, layers="all")
    reg.attach(SGD(model.parameters(), 0.1), update_every=1)
    reg.update()
    assert list(model.state_dict()) == keys
    assert {m: set(vars(m)) for m in model.modules()} == attributes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert_equal(pickle.loads(pickle.dumps(model)), model)


def test_update_does_not_touch_weights_gradients_or_random_state():
    model = make_model()
    reg = AdaReg(model, layers="all")
    before, state = copy.deepcopy(model), torch.get_rng_state()
    reg.update()
    reg.metrics()
    assert_equal(model, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("rule", ["alternating", "joint", "official"])
def test_resuming_gives_the_same_weights_to_the_last_bit(tmp_path, mode, rule):
    data = make_data()

    def start(model):
        optimizer = Adam(model.parameters(), 1e-2)
        reg = AdaReg(model, layers="all", strength=1e-3, rule=rule)
        reg.attach(optimizer, mode, update_every=4)
        return optimizer, reg

    unbroken = make_model()
    train(unbroken, start(unbroken)[0], 23, data)

    first = make_model()
    optimizer, reg = start(first)
    train(first, optimizer, 10, data)  # in the middle of a block
    parts = {"model": first, "optimizer": optimizer, "reg": reg}
    torch.save({k: v.state_dict() for k, v in parts.items()}, tmp_path / "checkpoint.pt")

    second = make_model(seed=3)
    optimizer, reg = start(second)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    second.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    reg.load_state_dict(saved["reg"])
    train(second, optimizer, 13, data)
    assert_equal(second, unbroken)


def test_state_is_a_snapshot_and_restores_settings():
    reg = AdaReg(make_model(), strength=0.1, bounds=(0.5, 2.0), rule="joint")
    reg.update()
    state = reg.state_dict()
    row = reg.priors["2"].row.dense()
    with torch.no_grad():
        reg.model[2].weight.mul_(9)
    reg.update()
    other = AdaReg(make_model())
    other.load_state_dict(state)
    assert (other.strength, other.bounds, other.rule) == (0.1, (0.5, 2.0), "joint")
    assert torch.equal(other.priors["2"].row.dense(), row)
    other.update()
    reg.load_state_dict(state)  # loading and updating have not written into it
    assert torch.equal(reg.priors["2"].row.dense(), row)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("priors"), "not the state of an AdaReg: it has no entry 'priors'"),
        (lambda s: s.clear(), "not the state of an AdaReg: it has no entry 'format'"),
        (lambda s: s.update(bounds=None), "not the state of an AdaReg: 'NoneType' object"),
        (lambda s: s.update(format=99), "format 99, expected 2"),
        (lambda s: s.update(rule="best"), "rule='best'"),
        (lambda s: s["priors"].update(extra=s["priors"]["2"]), r"\['2', 'extra'\].*\['2'\]"),
        (lambda s: s["priors"].update({"2": {"row": 1}}), "not the state of an AdaReg"),
        (lambda s: s["priors"]["2"].update(row=[1, 2, 3]), "factors do not fit"),
        (lambda s: s["priors"]["2"]["col"].__setitem__(2, torch.ones(3)), "factors do not fit"),
        (lambda s: s["priors"]["2"]["col"].__setitem__(2, torch.full((5,), torch.nan)), "do not"),
        (lambda s: s["priors"]["2"]["row"][2].mul_(1e30), "factors do not fit"),
        (lambda s: s["priors"]["2"]["col"][0].mul_(1e-30), "factors do not fit"),
        (lambda s: s["priors"]["2"]["row"][1].mul_(1.1), "basis is not orthonormal"),
        (lambda s: s["priors"]["2"]["col"][1].copy_(torch.ones(16, 5)), "basis is not orthonormal"),
        (lambda s: s["priors"]["2"]["col"][1][:, 0].zero_(), "basis is not orthonormal"),
        (lambda s: s["priors"]["2"]["col"].__setitem__(2, -torch.ones(5)), "factors do not fit"),
    ],
)
def test_a_wrong_state_changes_nothing(change, message):
    reg = AdaReg(make_model())
    reg.update()
    before = reg.priors["2"].row.dense()
    state = copy.deepcopy(reg.state_dict())
    change(state)
    with pytest.raises(ValueError, match=message):
        reg.load_state_dict(state)
    assert torch.equal(reg.priors["2"].row.dense(), before)


@pytest.mark.parametrize("rule", ["alternating", "joint", "official"])
@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (7, 7), (520, 600), (600, 520)])
@pytest.mark.parametrize("rank", [0, 1, 4])
@pytest.mark.parametrize("decades", [0, 6])
def test_a_state_of_ones_own_is_accepted(rule, shape, rank, decades):
    """With null directions, and singular values down to rounding."""
    U, V = torch.randn(shape[0], rank), torch.randn(rank, shape[1])
    model = nn.Linear(shape[1], shape[0])
    model.weight.data = U * 10 ** -torch.linspace(0, decades, rank) @ V
    reg, other = AdaReg(model, rule=rule), AdaReg(model)
    reg.update()
    other.load_state_dict(reg.state_dict())
    torch.testing.assert_close(other.penalty(), reg.penalty(), rtol=0, atol=0)


def test_a_state_of_another_shape_is_refused():
    state = AdaReg(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 7))).state_dict()
    with pytest.raises(ValueError, match=r"2: the state's factors do not fit \(5, 16\)"):
        AdaReg(make_model()).load_state_dict(state)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_weights_keep_the_old_precisions(bad):
    model = make_model()
    reg = AdaReg(model, layers="all")
    reg.update()
    before = {name: prior.row.dense() for name, prior in reg.priors.items()}
    good = model[2].weight.detach().clone()
    with torch.no_grad():
        model[2].weight[0, 0] = bad
        model[0].weight.mul_(2)
    with pytest.raises(adareg.NonFiniteError, match="^2: the weight has NaN or infinite entries"):
        reg.update()
    for name, prior in reg.priors.items():
        assert torch.equal(prior.row.dense(), before[name])
    with torch.no_grad():
        model[2].weight.copy_(good)
    reg.update()  # training goes on
    assert not torch.equal(reg.priors["0"].row.dense(), before["0"])


def test_auto_strength_knows_n():
    assert AdaReg(make_model(), strength="auto", n_samples=600).strength == 1 / 1200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strength": "auto"}, "strength='auto'.*n_samples=None"),
        ({"strength": "auto", "n_samples": 0}, "n_samples=0"),
        ({"strength": "auto", "n_samples": 1.5}, "n_samples=1.5"),
        ({"strength": 1e-3, "n_samples": 10}, "n_samples=10 is used only with strength='auto'"),
        ({"strength": 0}, "strength=0: expected a positive number"),
        ({"strength": -1e-4}, "strength=-0.0001"),
        ({"strength": float("nan")}, "strength=nan"),
        ({"strength": float("inf")}, "strength=inf"),
        ({"strength": "big"}, "strength='big'"),
        ({"strength": None}, "strength=None"),
        ({"bounds": (0, 1)}, r"bounds=\(0, 1\)"),
        ({"bounds": (2, 1)}, r"bounds=\(2, 1\)"),
        ({"rule": "best"}, "rule='best'"),
        ({"layers": "nothing"}, "'nothing' matches no layer; the layers there are: 0, 2"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        AdaReg(make_model(), **arguments)


def test_strength_can_be_scheduled_but_not_broken():
    reg = AdaReg(make_model())
    before = reg.penalty()
    reg.strength = 2e-4
    torch.testing.assert_close(reg.penalty(), 2 * before)
    with pytest.raises(ValueError, match="strength=0"):
        reg.strength = 0


def test_metrics_say_what_they_say():
    model = make_model()
    reg = AdaReg(model, strength=0.1, bounds=(0.5, 2.0), rule="joint")
    reg.update()
    W, prior = model[2].weight.detach(), reg.priors["2"]
    spectrum = torch.cat([prior.row.eigenvalues(), prior.col.eigenvalues()])
    assert reg.metrics() == {
        "penalty": pytest.approx(reg.penalty().item()),
        "2/stable_rank": pytest.approx(adareg.stable_rank(W).item()),
        "2/spectral_norm": pytest.approx(adareg.spectral_norm(W).item()),
        "2/clipped_low": pytest.approx((spectrum == 0.5).double().mean().item()),
        "2/clipped_high": pytest.approx((spectrum == 2.0).double().mean().item()),
        "2/effective_weight_decay": pytest.approx(
            2 * reg.penalty().item() / W.square().sum().item()
        ),
    }


def test_effective_weight_decay_of_the_identity_is_twice_the_strength():
    assert AdaReg(make_model(), strength=0.1).metrics()["2/effective_weight_decay"] == (
        pytest.approx(0.2)
    )


def test_copies_and_pickles_are_independent_and_not_attached():
    model = make_model()
    reg = AdaReg(model, layers="all", rule="joint")
    reg.attach(SGD(model.parameters(), 0.1))
    reg.update()
    for twin in (copy.deepcopy(reg), pickle.loads(pickle.dumps(reg))):
        torch.testing.assert_close(twin.penalty(), reg.penalty())
        with torch.no_grad():
            twin.model[2].weight.mul_(2)
        twin.update()
        assert not torch.equal(twin.priors["2"].col.values, reg.priors["2"].col.values)
        twin.attach(SGD(twin.model.parameters(), 0.1))


def test_copies_find_their_layers_whatever_these_are_called():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.fc, self.last = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3)

    model = Net()
    reg = AdaReg(model, layers=[model.fc, model.last])
    model.requires_grad_(False)
    assert list(copy.deepcopy(reg).priors) == ["fc", "last"]


def test_update_in_inference_mode_leaves_training_possible():
    reg = AdaReg(make_model())
    with torch.inference_mode():
        reg.update()
        reg.metrics()
    reg.penalty().backward()


def test_looking_does_not_change_a_spectrally_normed_model():
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 5)))
    before = copy.deepcopy(model.state_dict())
    reg = AdaReg(model)
    reg.penalty()
    reg.update()
    reg.metrics()
    assert repr(reg)
    assert model[0].parametrizations.weight.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_metrics_of_a_broken_weight_are_nan_and_not_an_error():
    model = make_model()
    reg = AdaReg(model)
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    assert all(math.isnan(value) for key, value in reg.metrics().items() if "clipped" not in key)


def test_model_and_regularizer_copied_together_stay_together():
    model = make_model()
    twin, reg = copy.deepcopy((model, AdaReg(model)))
    assert reg.model is twin
    assert reg.layers["2"].module is twin[2]


def test_state_round_trip_is_exact_for_every_dtype():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        reg = AdaReg(make_model(dtype), layers="all")
        reg.update()
        buffer = io.BytesIO()
        torch.save(reg.state_dict(), buffer)
        buffer.seek(0)
        twin = AdaReg(make_model(dtype), layers="all")
        twin.load_state_dict(torch.load(buffer, weights_only=True))
        for name, prior in reg.priors.items():
            for side in ("row", "col"):
                stored = getattr(twin.priors[name], side).factors
                for a, b in zip(getattr(prior, side).factors, stored, strict=True):
                    assert (a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b))
