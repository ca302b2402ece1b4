"""The evidence rule inside training loops as users have them."""

import copy
import io

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

import adareg
from adareg import AdaReg, EvidenceReg
from adareg.core.evidence import constants
from adareg.core.evidence.constants import Constants


def mlp(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs))


def samples(n=60):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n, 8, generator=draw)
    return x, x[:, :3].argmax(1)


def regularizer(model, **more):
    return EvidenceReg(model, 60, more.pop("likelihood", "classification"), **more)


def train(model, optimizer, steps, x, y, loss=cross_entropy):
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("before", [30, 70])  # no update yet, and one
@pytest.mark.parametrize("attach_first", [True, False])
def test_resuming_is_exact_in_either_order(before, attach_first):
    x, y = samples()
    model = mlp()
    optimizer, reg = torch.optim.Adam(model.parameters(), 1e-2), regularizer(model)
    reg.attach(optimizer)
    train(model, optimizer, before, x, y)
    saved = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), reg.state_dict()], saved)
    train(model, optimizer, 80, x, y)
    saved.seek(0)
    states = torch.load(saved, weights_only=True)
    again = mlp()
    other, second = torch.optim.Adam(again.parameters(), 1e-2), regularizer(again)
    again.load_state_dict(states[0])
    other.load_state_dict(states[1])
    if attach_first:
        second.attach(other)
    second.load_state_dict(states[2])
    if not attach_first:
        second.attach(other)
    train(again, other, 80, x, y)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert reg.metrics() == second.metrics()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_state_has_the_same_shapes_before_and_after_an_update(tmp_path):
    model = mlp()
    reg = regularizer(model)
    reg.update(*samples())
    dcp.save({"reg": reg.state_dict()}, checkpoint_id=tmp_path)
    fresh = regularizer(mlp())
    state = {"reg": fresh.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path)
    fresh.load_state_dict(state["reg"])
    assert fresh.metrics()["2/gamma"] == reg.metrics()["2/gamma"]
    for name, prior in reg.priors.items():
        torch.testing.assert_close(fresh.priors[name].row.dense(), prior.row.dense())


def test_targets_that_are_not_finite_change_nothing():
    model, (x, _) = mlp(1), samples()
    reg = regularizer(model, likelihood="regression")
    y = x[:, :1] + 0.1
    reg.update(x, y)
    before = reg.metrics()
    broken = y.clone()
    broken[3] = torch.nan
    with pytest.raises(adareg.NonFiniteError, match="targets have NaN"):
        reg.update(x, broken)
    assert reg.metrics() == before
    reg.update(x, y)


def test_a_loader_that_is_being_read_is_not_disturbed():
    x, y = samples()
    order = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(x, y), 10, shuffle=True, generator=order)
    model = mlp()
    optimizer, reg = torch.optim.Adam(model.parameters()), regularizer(model)
    reg.attach(optimizer, update_every=2, data=loader)
    seen = []
    for batch, labels in loader:
        seen.append(labels)
        train(model, optimizer, 1, batch, labels)
    assert len(seen) == 6
    plain = torch.Generator().manual_seed(3)
    expected = DataLoader(TensorDataset(x, y), 10, shuffle=True, generator=plain)
    assert torch.equal(torch.cat(seen), torch.cat([labels for _, labels in expected]))
    assert reg.metrics()["updates"] == 3


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda d: DataLoader(d, 10, num_workers=1, persistent_workers=True),
            ValueError,
            "persistent_workers=True would end the epoch",
        ),
        (lambda d: d, TypeError, "TensorDataset has no batches; give its DataLoader"),
        (lambda d: iter([d.tensors]), TypeError, "an iterator can be read once only"),
    ],
)
def test_data_that_cannot_be_read_again_and_again_are_refused(make, error, message):
    model = mlp()
    reg = regularizer(model)
    with pytest.raises(error, match=message):
        reg.attach(torch.optim.Adam(model.parameters()), data=make(TensorDataset(*samples())))


def test_batches_of_varying_length():
    torch.manual_seed(0)

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, tokens):
            return self.head(self.embedding(tokens).mean(1))

    model = Mean()
    optimizer, reg = torch.optim.Adam(model.parameters()), regularizer(model)
    reg.attach(optimizer, update_every=8)
    for i in range(8):
        tokens = torch.randint(20, (10, 4 + i % 3))
        train(model, optimizer, 1, tokens, tokens[:, 0] % 3)
    assert reg.metrics()["updates"] == 1


@pytest.mark.parametrize("kind", [dict, list, tuple])
def test_a_model_whose_argument_holds_several_tensors(kind):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, parts):
            assert type(parts) is kind
            return self.net(sum(parts.values() if kind is dict else parts))

    x, y = samples()
    model = Sum()
    optimizer, reg = torch.optim.Adam(model.parameters()), regularizer(model)
    reg.attach(optimizer, update_every=6)
    for part in torch.arange(60).split(10):
        parts = {"a": x[part], "b": x[part]} if kind is dict else kind([x[part], x[part]])
        train(model, optimizer, 1, parts, y[part])
    (found,), labels = reg._source.batch()
    assert torch.equal((list(found.values()) if kind is dict else found)[1], x)
    assert torch.equal(labels, y)
    assert reg.metrics()["updates"] == 1


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
def test_steps_inside_autocast(mode):
    x, y = samples()
    found = []
    for inside in (False, True):
        model = mlp()
        optimizer, reg = torch.optim.SGD(model.parameters(), 0.1), regularizer(model)
        reg.attach(optimizer, mode, update_every=5, data=(x, y))
        for _ in range(12):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                optimizer.step()
        found.append(model[0].weight.detach())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_a_loader_of_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, a, b):
            return self.net(a + b)

    x, y = samples()
    model = Two()
    reg = regularizer(model)
    data = DataLoader([((x[i], x[i]), y[i]) for i in range(60)], 20)
    reg.attach(torch.optim.Adam(model.parameters()), data=data)
    reg.update()
    assert reg.metrics()["updates"] == 1


def test_of_a_large_batch_no_more_is_kept_than_is_looked_at(monkeypatch):
    monkeypatch.setattr(constants, "DEFAULTS", Constants(samples=25))
    x, y = samples()
    model = mlp()
    optimizer, reg = torch.optim.SGD(model.parameters(), 0.0), regularizer(model)
    reg.attach(optimizer, update_every=100)
    train(model, optimizer, 2, x, y)
    first, *others = reg._source._recent
    assert first.size == len(first.inputs[0]) == 25
    assert not others
    inputs, labels = reg._source.batch()
    assert torch.equal(inputs[0], x[-25:])
    assert torch.equal(labels, y[-25:])


def test_labels_of_samples_that_the_loss_ignores():
    x, y = samples()
    y = torch.where(torch.arange(60) % 2 == 0, -100, 2)
    model = mlp()
    optimizer, reg = torch.optim.SGD(model.parameters(), 0.0), regularizer(model)
    reg.attach(optimizer, update_every=100)
    train(model, optimizer, 1, x, y)
    inputs, labels = reg._source.batch()
    assert torch.equal(labels[1::2], torch.full((30,), 2))
    assert torch.equal(labels[::2], model(x)[::2].argmax(1))
    assert torch.equal(inputs[0], x)


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_labels_that_the_model_is_called_with(likelihood):
    """Beside them there may be values that have no samples."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x, labels, factor, share):
            logits = self.net(x)
            if labels.is_floating_point():
                return {"logits": logits, "loss": mse_loss(logits, labels)}
            loss = cross_entropy(logits, labels) * factor * share
            return {"logits": logits.clone(), "loss": loss}  # a copy without a gradient

    x, y = samples()
    ignored = torch.arange(60) % 2 == 0
    labels = torch.where(ignored, -100, y) if likelihood == "classification" else x[:, :3] + 1
    model = Own()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    reg = regularizer(model, likelihood=likelihood)
    reg.attach(optimizer, update_every=6)
    for part in torch.arange(60).split(10):
        batch = {"x": x[part], "labels": labels[part], "factor": torch.tensor(2.0), "share": 0.5}
        model(**batch)["loss"].backward()
        optimizer.step()
    inputs, found = reg._source.batch()
    assert torch.equal(inputs["x"], x)
    if likelihood == "classification":
        assert torch.equal(found[~ignored], y[~ignored])
        assert torch.equal(found[ignored], model.net(x).argmax(1)[ignored])
    else:
        assert torch.equal(found, labels)
    assert reg.metrics()["updates"] == 1


def test_what_was_seen_is_kept_whatever_becomes_of_the_buffer():
    x, y = samples()
    buffer = torch.empty(10, 8)
    model = mlp()
    optimizer, reg = torch.optim.SGD(model.parameters(), 0.0), regularizer(model)
    reg.attach(optimizer, update_every=100)
    for part in range(6):
        buffer.copy_(x[10 * part : 10 * part + 10])
        train(model, optimizer, 1, buffer, y[10 * part : 10 * part + 10])
    inputs, labels = reg._source.batch()
    assert torch.equal(inputs[0], x)
    assert torch.equal(labels, y)


@pytest.mark.parametrize("accumulated", [1, 3])
def test_an_update_sees_the_latest_batches(monkeypatch, accumulated):
    monkeypatch.setattr(constants, "DEFAULTS", Constants(samples=25, first=8, growth=2.0))
    x, _ = samples()
    model, seen, latest = mlp(), [], []
    optimizer, reg = torch.optim.SGD(model.parameters(), 1e-3), regularizer(model)
    reg.attach(optimizer)
    update = reg._solve
    monkeypatch.setattr(reg, "_solve", lambda *_: (seen.append(reg._source.batch()), update(*_))[1])
    for step in range(1, 20):
        optimizer.zero_grad()
        for _ in range(accumulated):
            batch = torch.randint(60, (10,))
            latest.append((x[batch], torch.full((10,), step % 3)))
            cross_entropy(model(latest[-1][0]), latest[-1][1]).backward()
        optimizer.step()
        if step in (8, 16):
            for found, expected in zip(seen.pop(), zip(*latest[-3:], strict=True), strict=True):
                found = found[0] if isinstance(found, tuple) else found
                assert torch.equal(found, torch.cat(expected)[-25:])
        assert not seen
        if step in (12, 18):  # far from any: nothing is copied
            assert not any(torch.equal(one.inputs[0], latest[-1][0]) for one in reg._source._recent)
    reg.update()  # by hand: with what there is
    assert reg.updates == 3


def test_the_models_file_and_copies_have_no_training_data():
    x, y = samples()
    model = mlp()
    optimizer, reg = torch.optim.Adam(model.parameters()), regularizer(model)
    sizes = []
    for _ in range(2):
        file = io.BytesIO()
        torch.save(model, file)
        sizes.append(file.tell())
        if len(sizes) == 1:
            reg.attach(optimizer)
            train(model, optimizer, 3, x, y)
            optimizer.zero_grad()
    assert sizes[1] < sizes[0] + 2000  # the inputs alone are as large
    twin = copy.deepcopy(model)
    train(twin, torch.optim.SGD(twin.parameters(), 0.0), 3, x, y)
    (hook,) = twin._forward_hooks.values()
    assert not hook.__self__._recent


def test_a_failed_attachment_leaves_no_hook():
    model = mlp()
    with pytest.raises(ValueError, match="does not hold this layer's weight"):
        regularizer(model).attach(torch.optim.Adam(mlp().parameters()))
    assert not model._forward_hooks


def test_an_update_after_a_capture_warns():
    """On a GPU ``_captured`` is set when a step is captured into a CUDA graph."""
    x, y = torch.randn(9, 4), torch.randint(3, (9,))
    reg = EvidenceReg(nn.Linear(4, 3), 9, "classification", layers="last")
    reg._captured = True
    with pytest.warns(UserWarning, match="capture it anew"):
        reg.update(x, y)
    reg.update(x, y)  # nothing was captured since: warnings are errors here


def test_no_samples_and_fractional_labels_are_refused():
    model, (x, y) = mlp(), samples()
    reg = regularizer(model)
    with pytest.raises(ValueError, match="no samples"):
        reg.update(x[:0], y[:0])
    with pytest.raises(ValueError, match="the label 2.5 is none of 3 classes"):
        reg.update(x, y + 0.5)


def test_a_state_of_another_kind_is_refused():
    model = mlp()
    reg, paper = regularizer(model), AdaReg(model)
    with pytest.raises(ValueError, match="not the state of an EvidenceReg: .*'likelihood'"):
        reg.load_state_dict(paper.state_dict())
    with pytest.raises(ValueError, match="not the state of an AdaReg: .*'strength'"):
        paper.load_state_dict(reg.state_dict())
    with pytest.raises(ValueError, match="for likelihood='regression', this one has 'class"):
        reg.load_state_dict(regularizer(model, likelihood="regression").state_dict())


def test_regression_data_may_be_a_loader():
    x, _ = samples()
    y = x[:, :1] + 0.1
    model = mlp(1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    reg = regularizer(model, likelihood="regression")
    reg.attach(optimizer, update_every=5, data=DataLoader(TensorDataset(x, y), 16))
    train(model, optimizer, 10, x, y, mse_loss)
    assert reg.metrics()["updates"] == 2


def test_a_loop_may_count_its_steps_and_update_by_itself():
    model = mlp()
    reg = regularizer(model)
    due = [reg.count_steps(7) for _ in range(12)]
    assert due == [k in (8, 11) for k in range(1, 13)]  # 56, 77
    reg.update(*samples())
    assert reg.updates == 1
    assert not AdaReg(model).count_steps(1000)


@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.9}, {"momentum": 0.8, "dampening": 0.5}])
def test_proximal_steps_end_where_loss_and_prior_are_in_balance(momentum):
    """Where momentum makes more of the loss's gradients, it must of the prior's as well."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 5, dtype=torch.float64), torch.randn(40, 2, dtype=torch.float64)
    model = nn.Linear(5, 2, bias=False, dtype=torch.float64)
    reg = EvidenceReg(model, 40, "regression")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **momentum)
    reg.attach(optimizer, "proximal", update_every=10**9, data=(x, y))
    reg.update()
    for _ in range(1500):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    (prior,) = reg.priors.values()
    precision = torch.kron(prior.row.dense(), prior.col.dense())
    normal = torch.kron(torch.eye(2).double(), x.T @ x) / y.numel()
    right = (y.T @ x).flatten() / y.numel()
    exact = torch.linalg.solve(normal + reg.strength * precision, right).view(2, 5)
    torch.testing.assert_close(model.weight.detach(), exact, rtol=1e-9, atol=1e-12)


def test_proximal_steps_need_gradients_that_are_not_rescaled():
    model = mlp()
    reg = EvidenceReg(model, 60, "classification")
    with pytest.raises(
        ValueError, match="Adam rescales them: mode='proximal' needs torch.optim.SGD"
    ):
        reg.attach(torch.optim.Adam(model.parameters()), "proximal")
