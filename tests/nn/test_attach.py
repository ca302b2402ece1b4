import copy

import pytest
import torch
from test_regularizer import groups
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_, parametrizations, prune
from torch.optim import LBFGS, SGD, Adam, AdamW

import adareg
from adareg import AdaReg
from training import DEVICES, assert_close, assert_equal, make_data, make_model, train

OPTIMIZERS = {
    "sgd": lambda p, **k: SGD(p, 0.05, momentum=0.9, **k),
    "adam": lambda p, **k: Adam(p, 1e-2, **k),
    "adamw": lambda p, **k: AdamW(p, 1e-2, **k),
}
IMPLEMENTATIONS = [{"foreach": False}, {"foreach": True}, {"fused": True}]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", IMPLEMENTATIONS, ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_coupled_is_the_penalty_in_the_loss(optimizer, how, device):
    data = make_data(dtype=torch.float64, device=device)
    attached, plain = make_model(torch.float64, device), make_model(torch.float64, device)
    make = OPTIMIZERS[optimizer]
    opt = make(attached.parameters(), **how)
    AdaReg(attached, strength=1e-3, bounds=(0.1, 10)).attach(opt, update_every=7)
    train(attached, opt, 30, data)
    opt = make(plain.parameters(), **how)
    reg = AdaReg(plain, strength=1e-3, bounds=(0.1, 10))
    for step in range(1, 31):
        train(plain, opt, 1, data, reg.penalty)
        if step % 7 == 0:
            reg.update()
    assert_close(attached, plain, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coupled_identity_is_weight_decay_to_the_last_bit(dtype):
    data = make_data(dtype=dtype)
    attached, decayed = make_model(dtype), make_model(dtype)
    optimizer = Adam(attached.parameters(), 1e-2)
    AdaReg(attached, strength=0.00123).attach(optimizer)
    train(attached, optimizer, 40, data)
    train(decayed, Adam(groups(decayed, weight_decay=2 * 0.00123), 1e-2), 40, data)
    assert_equal(attached, decayed)


def test_proximal_is_the_dense_solve_after_the_step():
    data = make_data(dtype=torch.float64)
    attached, plain = make_model(torch.float64), make_model(torch.float64)
    reg = AdaReg(attached, strength=1e-2, bounds=(0.1, 10), rule="joint")
    reg.update()
    K = torch.kron(reg.priors["2"].row.dense(), reg.priors["2"].col.dense())  # row-major vec
    optimizer = SGD(groups(attached, lr=0.3), 0.1)  # the layer's own learning rate counts
    reg.attach(optimizer, "proximal")
    train(attached, optimizer, 5, data)
    expected = SGD(groups(plain, lr=0.3), 0.1)
    for _ in range(5):
        train(plain, expected, 1, data)
        with torch.no_grad():
            W = plain[2].weight
            system = torch.eye(W.numel()).double() + 2 * 0.3 * 1e-2 * K
            W.copy_(torch.linalg.solve(system, W.flatten()).reshape(W.shape))
    assert_close(attached, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_proximal_is_stable_where_coupled_diverges(device):
    """The paper's λ and bounds: curvature 2λv² = 200, so gradient descent at lr 1 must blow up."""
    data = make_data(device=device)

    def run(mode):
        model = make_model(device=device)
        optimizer = SGD(model.parameters(), 1.0)
        AdaReg(model, strength=1e-4, rule="joint").attach(optimizer, mode, update_every=20)
        train(model, optimizer, 100, data)
        return model, cross_entropy(model(data[0]), data[1])

    with pytest.raises(adareg.NonFiniteError):
        run("coupled")
    start = cross_entropy(make_model(device=device)(data[0]), data[1])
    model, loss = run("proximal")
    assert torch.isfinite(model[2].weight).all()
    assert loss < start / 2


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
def test_a_frozen_moment_is_left_alone_as_weight_decay_does(mode):
    model = make_model()
    optimizer = SGD(model.parameters(), 0.1)
    AdaReg(model, strength=0.1).attach(optimizer, mode)
    before = copy.deepcopy(model)
    optimizer.step()  # no gradients yet
    assert_equal(model, before)


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
def test_gradient_accumulation_counts_the_penalty_once(mode):
    x, y = make_data(dtype=torch.float64)
    whole, parts = make_model(torch.float64), make_model(torch.float64)
    for model, chunks in [(whole, 1), (parts, 4)]:
        optimizer = SGD(model.parameters(), 0.1)
        AdaReg(model, strength=1e-2).attach(optimizer, mode, update_every=3)
        for _ in range(8):
            optimizer.zero_grad()
            for xs, ys in zip(x.chunk(chunks), y.chunk(chunks), strict=True):
                (cross_entropy(model(xs), ys) / chunks).backward()
            optimizer.step()
    assert_close(whole, parts, rtol=1e-10, atol=1e-12)


def test_clipping_does_not_clip_the_penalty():
    x, y = make_data(dtype=torch.float64)
    model = make_model(torch.float64)
    W = model[2].weight.detach().clone()
    optimizer = SGD(model.parameters(), 1.0)
    AdaReg(model, strength=0.25).attach(optimizer)
    cross_entropy(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 1e-3)
    clipped = model[2].weight.grad.clone()
    optimizer.step()
    torch.testing.assert_close(model[2].weight.detach(), W - clipped - 0.5 * W)


SCALED = [(device, how) for device in DEVICES for how in IMPLEMENTATIONS]


@pytest.mark.parametrize(("device", "how"), SCALED, ids=str)
@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscaled-first"])
def test_grad_scaler(mode, how, device, unscale):
    """Scaled training is plain training; a step with infinite gradients changes nothing."""
    x, y = make_data(device=device)
    scaled, plain = make_model(device=device), make_model(device=device)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    for model in (scaled, plain):
        optimizer = SGD(model.parameters(), 0.1, **how)
        reg = AdaReg(model, strength=1e-2, bounds=(0.1, 10))
        reg.update()
        reg.attach(optimizer, mode, update_every=2)
        for step in range(6):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            if model is plain:
                loss.backward()
                optimizer.step()
                continue
            scaler.scale(loss).backward()
            if step == 3:  # an overflow: this step is skipped, and made once more
                good = [p.grad.clone() for p in model.parameters()]
                before = copy.deepcopy(model)
                model[0].weight.grad[0, 0] = float("inf")
                scaler.step(optimizer)
                scaler.update(2.0**10)
                assert_equal(model, before)
                assert reg.state_dict()["steps"] == 3
                for parameter, grad in zip(model.parameters(), good, strict=True):
                    parameter.grad = grad
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update(2.0**10)
    assert_close(scaled, plain, rtol=1e-5, atol=1e-6)


def test_closures_see_the_penalty_every_time():
    """LBFGS evaluates its closure many times: attached, it must walk as with the penalty inside."""
    x, y = make_data(dtype=torch.float64)
    attached, plain = make_model(torch.float64), make_model(torch.float64)
    for model, inside in [(attached, False), (plain, True)]:
        optimizer = LBFGS(model.parameters(), line_search_fn="strong_wolfe")
        reg = AdaReg(model, strength=1e-2)
        if not inside:
            reg.attach(optimizer)

        def closure(model=model, optimizer=optimizer, reg=reg, inside=inside):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y) + (reg.penalty() if inside else 0)
            loss.backward()
            return loss

        optimizer.step(closure)
        optimizer.step(closure=closure)
    assert_close(attached, plain, rtol=1e-6, atol=1e-8)


def test_parametrized_weights_get_their_gradient_through_the_parametrization():
    x, y = make_data(dtype=torch.float64)
    attached, plain = (
        nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 5).double())) for _ in range(2)
    )
    plain.load_state_dict(attached.state_dict())
    optimizer = Adam(attached.parameters(), 1e-2)
    AdaReg(attached, strength=1e-2).attach(optimizer, update_every=5)
    train(attached, optimizer, 12, (x, y))
    optimizer, reg = Adam(plain.parameters(), 1e-2), AdaReg(plain, strength=1e-2)
    for step in range(1, 13):
        train(plain, optimizer, 1, (x, y), reg.penalty)
        if step % 5 == 0:
            reg.update()
    assert_close(attached, plain, rtol=1e-9, atol=1e-11)


def test_learning_rate_survives_a_reloaded_optimizer():
    model = make_model()
    optimizer = SGD(model.parameters(), 0.1)
    AdaReg(model, strength=1.0).attach(optimizer, "proximal")
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.5
    optimizer.load_state_dict(state)
    W = model[2].weight.detach().clone()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(model[2].weight.detach(), W / (1 + 2 * 0.5 * 1.0))


def test_update_every_counts_optimizer_steps():
    model = make_model()
    optimizer = SGD(model.parameters(), 0.1)
    reg = AdaReg(model)
    reg.attach(optimizer, update_every=3)
    changes = []
    for _ in range(7):
        before = reg.priors["2"]
        train(model, optimizer, 1, make_data())
        changes.append(reg.priors["2"] is not before)
    assert changes == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("how", IMPLEMENTATIONS, ids=str)
def test_gradients_are_left_as_the_step_found_them(how):
    """Two steps on one gradient: what weight decay does, the penalty does."""
    x, y = make_data()
    attached, decayed = make_model(), make_model()
    AdaReg(attached, strength=0.05).attach(optimizer := Adam(attached.parameters(), 0.01, **how))
    other = Adam(groups(decayed, weight_decay=0.1), 0.01, **how)
    for model, opt in [(attached, optimizer), (decayed, other)]:
        cross_entropy(model(x), y).backward()
        before = [p.grad.clone() for p in model.parameters()]
        opt.step()
        opt.step()
        for parameter, grad in zip(model.parameters(), before, strict=True):
            assert torch.equal(parameter.grad, grad)
    assert_close(attached, decayed, rtol=1e-6, atol=1e-7)


def test_maximizing_still_shrinks():
    model = make_model()
    optimizer = SGD(model.parameters(), 0.1, maximize=True)
    AdaReg(model, strength=0.5).attach(optimizer)
    W = model[2].weight.detach().clone()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(model[2].weight.detach(), 0.9 * W)


def test_two_regularizers_on_one_weight_are_refused():
    model = make_model()
    optimizer = SGD(model.parameters(), 0.1)
    handle = AdaReg(model).attach(optimizer)
    with pytest.raises(RuntimeError, match="2: another regularizer attached to this optimizer"):
        AdaReg(model, layers="all").attach(optimizer)
    AdaReg(model, layers="0").attach(optimizer)  # another layer is fine
    handle.remove()
    AdaReg(model).attach(optimizer)


def test_a_weight_frozen_since_is_named():
    model = make_model()
    reg = AdaReg(model)
    model[2].weight.requires_grad_(False)
    with pytest.raises(ValueError, match="2: the weight is frozen"):
        reg.attach(SGD(model.parameters(), 0.1))


def test_removing_the_handle_ends_it():
    data = make_data()
    once, never = make_model(), make_model()
    optimizer = SGD(once.parameters(), 0.1)
    reg = AdaReg(once, strength=0.1)
    handle = reg.attach(optimizer, update_every=1)
    handle.remove()
    handle.remove()
    train(once, optimizer, 3, data)
    train(never, SGD(never.parameters(), 0.1), 3, data)
    assert_equal(once, never)
    reg.attach(optimizer)  # and it can be attached again


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
def test_sparse_embeddings(mode):
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))
    optimizer = SGD(model.parameters(), 0.1)
    AdaReg(model, layers="embedding", strength=0.1).attach(optimizer, mode)
    model(torch.tensor([[1, 2], [2, 3]])).sum().backward()
    if mode == "coupled":
        with pytest.raises(TypeError, match="0: its gradient is sparse.*mode='proximal'"):
            optimizer.step()
    else:
        untouched = model[0].weight[7].detach().clone()
        optimizer.step()
        torch.testing.assert_close(model[0].weight[7].detach(), untouched / 1.02)


def _weight_normed():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 5)))


@pytest.mark.parametrize(
    ("attach", "error", "message"),
    [
        (
            lambda m, r: r.attach(SGD(m.parameters(), 0.1), "both"),
            ValueError,
            "mode='both'.*'coupled'",
        ),
        (lambda m, r: r.attach(SGD(m.parameters(), 0.1), update_every=0), ValueError, "every=0"),
        (lambda m, r: r.attach(SGD(m.parameters(), 0.1), update_every=True), ValueError, "True"),
        (lambda m, r: r.attach(SGD(m.parameters(), 0.1), update_every=1.5), ValueError, "1.5"),
        (
            lambda m, r: r.attach(SGD([m[0].weight], 0.1)),
            ValueError,
            "2: the optimizer does not hold",
        ),
        (lambda m, r: r.attach("adam"), TypeError, "torch.optim.Optimizer, got 'adam'"),
        (
            lambda m, r: [r.attach(SGD(m.parameters(), 0.1)) for _ in range(2)],
            RuntimeError,
            r"attached already; call remove\(\)",
        ),
    ],
)
def test_wrong_attachments_are_refused(attach, error, message):
    model = make_model()
    with pytest.raises(error, match=message):
        attach(model, AdaReg(model))


def test_proximal_on_a_parametrized_weight_is_refused():
    model = _weight_normed()
    optimizer = SGD(model.parameters(), 0.1)
    reg = AdaReg(model)
    with pytest.raises(ValueError, match="0: its weight is parametrized.*mode='coupled'"):
        reg.attach(optimizer, "proximal")
    reg.attach(optimizer, "coupled")  # a refused attachment leaves nothing behind


def test_a_weight_that_was_pruned_after_attach_is_named():
    model = make_model()
    optimizer = SGD(model.parameters(), 0.1)
    reg = AdaReg(model)
    reg.attach(optimizer)
    prune.l1_unstructured(model[2], "weight", 0.5)
    for call in (optimizer.step, reg.penalty, reg.update):
        with pytest.raises(RuntimeError, match=r"2: 'weight' has been replaced .* prune\.remove"):
            call()
    prune.remove(model[2], "weight")
    optimizer.step()
    reg.update()


class Failing(SGD):
    """Raises in its first step, after the hooks before it."""

    fails = True

    def step(self, closure=None):
        if self.fails:
            self.fails = False
            raise MemoryError
        return super().step(closure)


def test_a_step_that_raised_may_be_tried_again():
    data, (failed, plain) = make_data(), (make_model(), make_model())
    trained = []
    for model, kind in ((failed, Failing), (plain, SGD)):
        optimizer = kind(model.parameters(), 0.1)
        AdaReg(model, strength=0.1).attach(optimizer)
        cross_entropy(model(data[0]), data[1]).backward()
        if kind is Failing:
            with pytest.raises(MemoryError):
                optimizer.step()
        optimizer.step()
        trained.append(model)
    assert_equal(*trained)


def test_gradients_set_to_zero_after_a_step_that_raised_stay_zero():
    model = make_model()
    optimizer = Failing(model.parameters(), 0.1)
    handle = AdaReg(model, strength=0.1).attach(optimizer)
    x, y = make_data()
    cross_entropy(model(x), y).backward()
    with pytest.raises(MemoryError):
        optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    handle.remove()
    assert not model[2].weight.grad.any()


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
def test_parameter_groups_may_change_their_order(mode):
    data, models = make_data(), [make_model(), make_model()]
    for turned, model in enumerate(models):
        groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters()}]
        optimizer = SGD(groups, 0.1)
        AdaReg(model, strength=0.1).attach(optimizer, mode)
        if turned:
            optimizer.param_groups.reverse()
        train(model, optimizer, 3, data)
    assert_equal(*models)


def test_a_weight_that_the_optimizer_has_lost_is_named():
    model = make_model()
    optimizer = SGD(model.parameters(), 0.1)
    AdaReg(model).attach(optimizer, "proximal")
    optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][:2]
    with pytest.raises(RuntimeError, match="2: the optimizer does not hold this layer's weight"):
        optimizer.step()


def test_the_value_that_a_closure_maximizes_is_less_the_penalty():
    model = make_model()
    x, y = make_data()
    optimizer = SGD(model.parameters(), 0.1, maximize=True)
    reg = AdaReg(model, strength=0.5)
    reg.attach(optimizer)
    penalty = reg.penalty().item()

    def closure():
        optimizer.zero_grad()
        value = -cross_entropy(model(x), y)
        value.backward()
        return value

    value = closure().item()
    assert optimizer.step(closure).item() == pytest.approx(value - penalty)


def test_a_loss_may_be_maximized_for_some_groups():
    model = make_model()
    optimizer = SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], 0.0)
    AdaReg(model, layers="all", strength=0.5).attach(optimizer)
    each = [0.5 * model[i].weight.detach().square().sum() for i in (0, 2)]

    def closure():
        return torch.tensor(3.0)

    for signs in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
        for sign, group in zip(signs, optimizer.param_groups, strict=True):
            group["maximize"] = sign < 0
        expected = 3 + sum(sign * one for sign, one in zip(signs, each, strict=True))
        torch.testing.assert_close(optimizer.step(closure), expected)


def test_a_module_that_was_replaced_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 3)))
    reg = AdaReg(model)
    optimizer = SGD(model.parameters(), 0.1)
    reg.attach(optimizer)
    model[0] = nn.Linear(4, 4)  # not regularized
    reg.penalty()
    model[1][1] = torch.compile(model[1][1])  # the same within
    reg.penalty()
    model[1][1] = nn.Linear(4, 3)
    for use in (reg.penalty, reg.update, reg.metrics, optimizer.step):
        with pytest.raises(RuntimeError, match=r"1\.1: this module has been replaced"):
            use()
