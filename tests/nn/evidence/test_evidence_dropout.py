"""Learned dropout in a training, and what it costs, against enumerations of all masks."""

import copy
import io
import itertools
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from adareg import EvidenceReg
from adareg.nn.evidence import dropout
from adareg.nn.select import select


def mlp(inputs=8, hidden=16, outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def samples(n=60):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n, 8, generator=draw)
    return x, x[:, :3].argmax(1)


def attached(model, data, likelihood="classification", lr=1e-2, **more):
    optimizer = torch.optim.Adam(model.parameters(), lr)
    reg = EvidenceReg(model, len(data[0]), likelihood, dropout="learned", **more)
    return reg, optimizer, reg.attach(optimizer, data=data)


def train(model, optimizer, steps, x, y, loss=cross_entropy):
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


def rates(reg):
    return [value for name, value in reg.metrics().items() if name.endswith("/dropout")]


# What noise costs


def loss_over_all_masks(model, at, x, c):
    """The expected loss, at labels as the model predicts them, over all masks of one layer."""
    before, after = model[:at], model[at:]
    hidden, p = before(x), model(x).softmax(1)
    rate, total = c / (1 + c), 0.0
    for kept in itertools.product([0.0, 1.0], repeat=hidden.shape[1]):
        m = torch.tensor(kept, dtype=x.dtype)
        chance = (m * (1 - rate) + (1 - m) * rate).prod()
        answer = after(hidden * m / (1 - rate)).log_softmax(1)
        total += chance * float(-(p * answer).sum(1).mean())
    return total


def roots(passes, outputs):
    """A root of the curvature of the softmax, another one in every pass."""
    p, k = outputs.softmax(1), next(passes)
    K = p.shape[1]
    return K**0.5 * p[:, [k]].sqrt() * (torch.eye(K)[k] - p)


def found_costs(model, rate, x):
    layers = {layer.name: layer for layer in select(model, "all")}
    names, K = dropout.suited(layers), model(x).shape[1]
    direction = partial(roots, iter(range(K)))
    generator = torch.Generator().manual_seed(0)
    rates = dict.fromkeys(names, rate)
    return dropout.sensitivities(model, layers, rates, x, direction, generator, K)


@pytest.mark.parametrize("at", [0, 2, 4])
def test_noise_raises_the_expected_loss_by_half_its_variance_times_the_sensitivity(at):
    torch.manual_seed(1)
    sizes = (4, 5, 3, 3)
    parts = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
    model, x = nn.Sequential(*parts[:-1]).double(), torch.randn(6, 4).double()
    with torch.no_grad():
        model[at].weight.mul_(1e-3)  # so that dropping an input changes little
        t = found_costs(model, 0.0, x)[str(at)]
        none, noisy = (loss_over_all_masks(model, at, x, c) for c in (0.0, 0.5))
    assert (noisy - none) / 0.5 == pytest.approx(t / 2, rel=1e-2)


def test_the_sensitivity_of_a_linear_map_is_the_trace_of_its_curvature():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 3)).double(), torch.randn(7, 5).double()
    W, expected = model[0].weight.detach(), 0.0
    for a, p in zip(x, model(x).softmax(1).detach(), strict=True):
        G = torch.diag(p) - torch.outer(p, p)
        expected += float(torch.trace(G @ W @ torch.diag(a * a) @ W.T)) / len(x)
    assert found_costs(model, 0.0, x)["0"] == pytest.approx(expected)


def test_looking_at_the_costs_leaves_everything_alone():
    model, (x, _) = mlp(), samples()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    found_costs(model, 0.4, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model)


# Noise in training


def test_noise_is_in_training_passes_alone_and_gone_when_detached():
    model, data = mlp(), samples()
    reg, optimizer, handle = attached(model, data)
    keys = list(model.state_dict())
    train(model, optimizer, 60, *data)
    x = data[0]
    assert min(rates(reg)) > 0.01
    assert not torch.equal(model(x), model(x))
    model.eval()
    expected = copy.deepcopy(model)
    for module in expected:
        module._forward_pre_hooks.clear()
    assert torch.equal(model(x), expected(x))
    model.train()
    assert list(model.state_dict()) == keys
    handle.remove()
    assert torch.equal(model(x), model(x))
    assert not any(module._forward_pre_hooks for module in model)


def test_a_layer_in_evaluation_mode_has_no_noise():
    model, data = mlp(), samples()
    _, optimizer, _ = attached(model, data)
    train(model, optimizer, 60, *data)
    model.train()
    model[0].eval()
    seen = []
    model[1].register_forward_hook(lambda module, args, out: seen.append(args[0]))
    assert not torch.equal(model(data[0]), model(data[0]))  # the last layer has noise
    assert torch.equal(*seen)


def test_masks_have_mean_one_and_drop_at_the_rate():
    torch.manual_seed(0)
    made = dropout.mask(torch.ones(400, 500), torch.tensor(0.3))
    assert made.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert float(made.mean()) == pytest.approx(1, abs=0.01)
    assert float((made == 0).float().mean()) == pytest.approx(0.3, abs=0.005)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_masks_have_the_dtype_of_the_inputs_and_the_rate_of_theirs(dtype):
    torch.manual_seed(0)
    made = dropout.mask(torch.ones(400, 500, dtype=dtype), torch.tensor(0.003))
    assert made.dtype == dtype
    assert float((made == 0).double().mean()) == pytest.approx(0.003, rel=0.2)


def test_gradients_are_those_of_the_masked_network():
    model, data = mlp(), samples()
    reg, optimizer, _ = attached(model, data)
    train(model, optimizer, 60, *data)
    model.double()
    x, y = data[0].double(), data[1]
    torch.manual_seed(5)
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    torch.manual_seed(5)
    first, second = (torch.tensor(rate, dtype=torch.float32) for rate in rates(reg))
    W, V = (model[i].weight.detach().clone().requires_grad_() for i in (0, 2))
    masked = x * (torch.rand(x.shape) >= first) / (1 - first)
    hidden = (masked @ W.T + model[0].bias).relu()
    hidden = hidden * (torch.rand(hidden.shape) >= second) / (1 - second)
    cross_entropy(hidden @ V.T + model[2].bias, y).backward()
    assert torch.allclose(W.grad, model[0].weight.grad)
    assert torch.allclose(V.grad, model[2].weight.grad)


def test_draws_follow_the_global_generator():
    model, data = mlp(), samples()
    _, optimizer, _ = attached(model, data)
    train(model, optimizer, 60, *data)
    torch.manual_seed(3)
    first = model(data[0])
    torch.manual_seed(3)
    assert torch.equal(first, model(data[0]))


def test_copies_of_the_model_have_no_noise():
    model, data = mlp(), samples()
    _, optimizer, _ = attached(model, data)
    train(model, optimizer, 60, *data)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.training
        assert torch.equal(other(data[0]), other(data[0]))
    assert not torch.equal(model(data[0]), model(data[0]))


# Updates


def test_an_update_sees_the_network_without_noise():
    model, data = mlp(), samples()
    reg, optimizer, _ = attached(model, data)
    train(model, optimizer, 60, *data)
    plain = EvidenceReg(model, len(data[0]), "classification")
    plain.load_state_dict({**reg.state_dict(), "dropout": "{}"})
    reg.update(*data)
    plain.update(*data)
    for name, prior in reg.priors.items():
        assert torch.equal(prior.row.dense(), plain.priors[name].row.dense())
        assert torch.equal(prior.col.dense(), plain.priors[name].col.dense())
    assert torch.equal(reg.noise, plain.noise)


def test_nothing_is_dropped_before_the_first_update():
    model, data = mlp(), samples()
    reg, optimizer, _ = attached(model, data)
    train(model, optimizer, 49, *data)
    assert rates(reg) == [0, 0]
    assert torch.equal(model(data[0]), model(data[0]))


@pytest.mark.parametrize("likelihood", ["regression", "multilabel"])
def test_other_likelihoods_are_refused(likelihood):
    with pytest.raises(ValueError, match="is for classification"):
        EvidenceReg(mlp(), 60, likelihood, dropout="learned")


def test_more_data_need_less_noise():
    found = {}
    for n in (30, 600):
        model, data = mlp(), samples(n)
        reg, optimizer, _ = attached(model, data)
        train(model, optimizer, 300, *data)
        found[n] = max(rates(reg))
    assert found[600] < found[30] / 2


def test_the_penalty_is_half_of_what_it_is_alone():
    alone = EvidenceReg(mlp(), 60, "classification")
    beside = EvidenceReg(mlp(), 60, "classification", dropout="learned")
    alone.waiting = beside.waiting = False
    assert beside.strength == alone.strength / 2
    assert beside.metrics()["penalty"] == pytest.approx(alone.metrics()["penalty"] / 2)


@pytest.mark.parametrize("before", [30, 70])  # no update yet, and one
@pytest.mark.parametrize("attach_first", [True, False])
def test_resuming_is_exact_in_either_order(before, attach_first):
    data, model = samples(), mlp()
    reg, optimizer, _ = attached(model, data)
    train(model, optimizer, before, *data)
    saved = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), reg.state_dict()], saved)
    torch.manual_seed(7)
    train(model, optimizer, 80, *data)
    saved.seek(0)
    states = torch.load(saved, weights_only=True)
    again = mlp()
    other = torch.optim.Adam(again.parameters(), 1e-2)
    second = EvidenceReg(again, 60, "classification", dropout="learned")
    again.load_state_dict(states[0])
    other.load_state_dict(states[1])
    if attach_first:
        second.attach(other, data=data)
    second.load_state_dict(states[2])
    if not attach_first:
        second.attach(other, data=data)
    torch.manual_seed(7)
    train(again, other, 80, *data)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert rates(reg) == rates(second)
    assert min(rates(reg)) > 0


def test_a_copy_of_the_regularizer_goes_on():
    data, model = samples(), mlp()
    reg, optimizer, _ = attached(model, data)
    train(model, optimizer, 60, *data)
    other = pickle.loads(pickle.dumps(reg))
    assert other.metrics() == reg.metrics()
    again = torch.optim.Adam(other.model.parameters(), 1e-2)
    handle = other.attach(again, data=data)
    assert not torch.equal(other.model(data[0]), other.model(data[0]))
    handle.remove()


def test_a_state_with_dropout_is_refused_without_and_the_other_way_round():
    one = EvidenceReg(mlp(), 60, "classification", dropout="learned")
    other = EvidenceReg(mlp(), 60, "classification")
    with pytest.raises(ValueError, match="learned dropout at 0, 2, this one at no layer"):
        other.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="learned dropout at no layer, this one at 0, 2"):
        one.load_state_dict(other.state_dict())


@pytest.mark.parametrize("wrong", [0.5, True, "concrete"])
def test_another_kind_of_dropout_is_refused(wrong):
    with pytest.raises(ValueError, match=r"nn\.Dropout"):
        EvidenceReg(mlp(), 60, "classification", dropout=wrong)


def test_a_model_without_linear_layers_is_refused():
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten())
    with pytest.raises(ValueError, match="none of 0 is a linear layer"):
        EvidenceReg(model, 60, "classification", dropout="learned")


# Other kinds of models


class Texts(nn.Module):
    """Linear maps of many vectors of a sample, one of them called twice and by keyword."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.inner(self.inner(input=x).relu())
        return self.outer(x.relu()).mean(1)


def test_layers_that_map_many_vectors_or_are_called_twice_learn_a_rate():
    torch.manual_seed(0)
    model, x = Texts(), torch.randn(60, 4, 8)
    data = x, x.mean(1)[:, :3].argmax(1)
    reg, optimizer, _ = attached(model, data)
    train(model, optimizer, 60, *data)
    assert min(rates(reg)) > 0.01


def test_layers_that_are_not_called_stay_without_noise():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(model, nn.Flatten(), nn.Linear(32, 3))
    x = torch.randn(40, 4, 8)
    data = x, x.mean(1)[:, :3].argmax(1)
    reg, optimizer, _ = attached(model, data, layers=["0.self_attn.out_proj", "2"])
    train(model, optimizer, 60, *data)
    assert reg.metrics()["0.self_attn.out_proj/dropout"] == 0
    assert reg.metrics()["2/dropout"] > 0.01


def test_rates_reach_a_compiled_step_that_was_compiled_after_attach():
    model, data = mlp(), samples()
    compiled = torch.compile(model, backend="eager")
    reg, optimizer, handle = attached(compiled, data)
    train(compiled, optimizer, 49, *data)
    assert torch.equal(compiled(data[0]), compiled(data[0]))
    train(compiled, optimizer, 11, *data)
    assert min(rates(reg)) > 0.01
    assert not torch.equal(compiled(data[0]), compiled(data[0]))
    handle.remove()
    assert torch.equal(compiled(data[0]), compiled(data[0]))


def test_a_model_that_was_compiled_before_attach_is_told():
    model, data = mlp(), samples()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.Adam(model.parameters())
    train(compiled, optimizer, 3, *data)
    EvidenceReg(compiled, 60, "classification", dropout="learned").attach(optimizer, data=data)
    with pytest.warns(UserWarning, match="compiled, and called, before attach"):
        train(compiled, optimizer, 60, *data)
