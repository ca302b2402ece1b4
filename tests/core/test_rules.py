"""The closed forms against the literal Alg. 1 and against brute force.

On 9,000 generated cases in all; `make test` tries 300 of them.
"""

from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import adareg
import oracles
from adareg.core import linalg, rules

RELATIVE = {torch.float64: 1e-10, torch.float32: 1e-6}


@dataclass(frozen=True)
class Case:
    weight: torch.Tensor
    bounds: tuple[float, float]

    @property
    def array(self):
        return self.weight.double().numpy()


@st.composite
def cases(draw, size=64):
    """Weights of every shape up to size x size, every rank, flat to steep spectra, any scale."""
    p, d = draw(st.integers(1, size)), draw(st.integers(1, size))
    rank = draw(st.integers(0, min(p, d)))
    decades = draw(st.sampled_from([0.0, 0.0, 1.0, 4.0, 12.0]))
    scale = 10 ** draw(st.floats(-6, 6))
    u = 10 ** draw(st.floats(-4, 0))
    v = 1 / u if draw(st.booleans()) else u * 10 ** draw(st.floats(0, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if decades or rank < min(p, d):
        U = np.linalg.qr(rng.normal(size=(p, rank)))[0]
        V = np.linalg.qr(rng.normal(size=(d, rank)))[0]
        W = (U * 10 ** -np.linspace(0, decades, rank)) @ V.T
    else:
        W = rng.normal(size=(p, d))
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    return Case(torch.from_numpy(scale * W).to(dtype), (u, v))


def assert_same_objective(case, ours, theirs):
    """The objective agrees to the last digits that the terms it is made of leave."""
    expected = oracles.objective(case.array, *theirs)
    rounding = 1e-14 * oracles.terms(case.array, *theirs)
    found = ours.objective(case.weight).item()
    assert abs(found - expected) <= RELATIVE[case.weight.dtype] * abs(expected) + rounding


def assert_valid(case, prior):
    """Bounds hold and the stored bases are orthonormal, or zero where they say nothing."""
    u, v = case.bounds
    for side in (prior.row, prior.col):
        eigenvalues = side.eigenvalues()
        assert eigenvalues.min() >= u * (1 - 1e-12)
        assert eigenvalues.max() <= v * (1 + 1e-12)
        silent = torch.zeros_like(side.values)
        if side.scale is not None:
            silent = (side.values == side.scale).double()
        gram = side.basis.mT @ side.basis
        error = (gram - torch.eye(len(gram))) * (1 - silent) * (1 - silent).unsqueeze(-1)
        assert error.abs().max().item() < 1e-5 if error.numel() else True


@given(cases())
def test_alternating_is_algorithm_1(case):
    ours = adareg.solve(case.weight, "alternating", case.bounds)
    assert_valid(case, ours)
    assert_same_objective(case, ours, oracles.alternating(case.array, *case.bounds))


@given(cases(size=24))
def test_alternating_goes_on_from_the_old_prior(case):
    ours = None
    for _ in range(4):
        ours = adareg.solve(case.weight, "alternating", case.bounds, ours)
    assert_same_objective(case, ours, oracles.alternating(case.array, *case.bounds, sweeps=4))


@given(cases())
def test_official_is_the_authors_order_and_numerators(case):
    ours = adareg.solve(case.weight, "official", case.bounds)
    assert_valid(case, ours)
    assert_same_objective(case, ours, oracles.official(case.array, *case.bounds))


@given(cases())
def test_joint_reaches_the_minimum_that_bisection_finds(case):
    ours = adareg.solve(case.weight, "joint", case.bounds)
    assert_valid(case, ours)
    found = ours.objective(case.weight).item()
    expected = oracles.joint_value(case.array, *case.bounds)
    rounding = 1e-14 * (abs(ours.penalty(case.weight).item()) + case.weight.numel() * 30)
    assert abs(found - expected) <= RELATIVE[case.weight.dtype] * abs(expected) + rounding


@given(cases(size=16))
def test_joint_is_never_above_alternating(case):
    joint = adareg.solve(case.weight, "joint", case.bounds).objective(case.weight).item()
    prior = None
    for _ in range(20):
        prior = adareg.solve(case.weight, "alternating", case.bounds, prior)
    swept = prior.objective(case.weight).item()
    assert joint <= swept + RELATIVE[case.weight.dtype] * abs(swept) + 1e-9


@given(cases(size=20))
def test_the_objective_never_rises(case):
    prior = adareg.MatrixNormal.identity(case.weight)
    prior = adareg.solve(case.weight, "alternating", case.bounds, prior)
    values = [prior.objective(case.weight).item()]
    for _ in range(6):
        prior = adareg.solve(case.weight, "alternating", case.bounds, prior)
        values.append(prior.objective(case.weight).item())
    tolerance = RELATIVE[case.weight.dtype] * np.abs(values).max() + 1e-9
    assert all(np.diff(values) <= tolerance)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (5, 2), (3, 3), (4, 9), (12, 7)])
@pytest.mark.parametrize("bounds", [(1e-3, 1e3), (0.3, 2.0)])
def test_joint_is_not_above_a_thousand_literal_sweeps(shape, bounds):
    W = torch.randn(shape, dtype=torch.float64)
    joint = adareg.solve(W, "joint", bounds).objective(W).item()
    swept = oracles.objective(W.numpy(), *oracles.alternating(W.numpy(), *bounds, sweeps=1000))
    assert joint <= swept + 1e-10 * abs(swept)


@pytest.mark.parametrize("rule", ["alternating", "official"])
@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (6, 10), (10, 6), (8, 8)])
def test_precisions_themselves_are_the_oracles(shape, rule):
    W = torch.randn(shape, dtype=torch.float64)
    ours = adareg.solve(W, rule)
    row, col = getattr(oracles, rule)(W.numpy(), 1e-3, 1e3)
    np.testing.assert_allclose(ours.row.dense(), oracles.dense(row), atol=1e-8)
    np.testing.assert_allclose(ours.col.dense(), oracles.dense(col), atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bounds", [(0.01, 100.0), (0.3, 2.0)])
def test_row_step_against_cvxpy(seed, bounds):
    W = torch.from_numpy(np.random.default_rng(seed).normal(size=(3, 4)))
    (p, d), (u, v) = W.shape, bounds
    omega = cp.Variable((p, p), PSD=True)
    delta = (W @ W.mT).numpy()
    problem = cp.Problem(
        cp.Minimize(cp.trace(omega @ delta) - d * cp.log_det(omega)),
        [omega >> u * np.eye(p), omega << v * np.eye(p)],
    )
    problem.solve(solver=cp.CLARABEL)
    row = adareg.solve(W, "alternating", bounds).row
    value = np.trace(row.dense().numpy() @ delta) - d * row.logdet().item()
    assert value == pytest.approx(problem.value, rel=1e-6)


def test_joint_by_hand():
    # p = 2, d = 3, s = (2, 1), and the third direction is null; b = clip(2/(s²·10)), a = 10.
    W = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    prior = adareg.solve(W, "joint", (0.1, 10.0))
    # s = 2: 2/(4·10) = 0.05 < u, so b = u and a = clip(3/(4·0.1)) = 7.5; s = 1: b = 0.2, a = 10.
    torch.testing.assert_close(prior.row.dense(), torch.tensor([7.5, 10.0]).double().diag())
    torch.testing.assert_close(prior.col.dense(), torch.tensor([0.1, 0.2, 10.0]).double().diag())


def test_joint_beats_random_feasible_precisions():
    rng = np.random.default_rng(0)
    W, bounds = rng.normal(size=(3, 5)), (0.3, 2.0)
    best = adareg.solve(torch.from_numpy(W), "joint", bounds).objective(torch.from_numpy(W)).item()
    for _ in range(500):
        sides = [
            (np.linalg.qr(rng.normal(size=(n, n)))[0], rng.uniform(*bounds, size=n)) for n in (3, 5)
        ]
        assert best <= oracles.objective(W, *sides)


@pytest.mark.parametrize("rule", ["alternating", "joint", "official"])
@pytest.mark.parametrize("shape", [(520, 600), (600, 520), (520, 520)])
def test_large_float32_weights_with_float32_factors(shape, rule):
    W = torch.randn(shape) / 20
    ours, exact = adareg.solve(W, rule), adareg.solve(W.double(), rule)
    assert ours.row.basis.dtype == torch.float32
    for side, reference in [(ours.row, exact.row), (ours.col, exact.col)]:
        error = torch.linalg.norm(side.dense().double() - reference.dense())
        assert error < 1e-5 * torch.linalg.norm(reference.dense())
    torch.testing.assert_close(
        ours.objective(W).double(), exact.objective(W.double()), rtol=1e-6, atol=0
    )


def test_chunks_do_not_change_the_answer(monkeypatch):
    W = torch.randn(30, 50, dtype=torch.float64)
    whole = [adareg.solve(w, rule) for rule in rules.RULES for w in (W, W.mT)]
    monkeypatch.setitem(linalg._CHUNK, "cpu", 7 * 30)
    parts = [adareg.solve(w, rule) for rule in rules.RULES for w in (W, W.mT)]
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a.row.dense(), b.row.dense())
        torch.testing.assert_close(a.col.dense(), b.col.dense())


@pytest.fixture
def _outsider(monkeypatch):
    """A rule of a user's own: sweeps, columns first, to the paper's numerators."""
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))

    @adareg.register_rule("columns first")
    def columns_first(W, prior, bounds):
        p, d = W.shape[-2:]
        row = prior.row
        for _ in range(2):
            col = yield from adareg.solve_side(W.mT, row, p, bounds)
            row = yield from adareg.solve_side(W, col, d, bounds)
        return adareg.MatrixNormal(row, col)


@pytest.mark.usefixtures("_outsider")
@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (6, 10), (10, 6), (8, 8)])
def test_a_rule_from_outside_is_a_rule(shape):
    W, bounds = torch.randn(shape, dtype=torch.float64), (0.1, 10.0)
    ours = adareg.solve(W, "columns first", bounds)
    col, row = oracles.alternating(W.mT.numpy(), *bounds, sweeps=2)
    np.testing.assert_allclose(ours.row.dense(), oracles.dense(row), atol=1e-8)
    np.testing.assert_allclose(ours.col.dense(), oracles.dense(col), atol=1e-8)


@pytest.mark.usefixtures("_outsider")
def test_a_rule_from_outside_in_adareg():
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 4)).double()
    reg = adareg.AdaReg(model, layers="all", rule="columns first")
    reg.update()
    for i, prior in enumerate(reg.priors.values()):
        alone = adareg.solve(model[i].weight.detach(), "columns first")
        torch.testing.assert_close(prior.row.dense(), alone.row.dense())
    other = adareg.AdaReg(model, layers="all")
    other.load_state_dict(reg.state_dict())
    assert other.rule == "columns first"


@pytest.mark.usefixtures("_outsider")
def test_a_rule_may_need_no_decomposition_and_leave_a_side_alone():
    @adareg.register_rule("frozen")
    def frozen(W, prior, bounds):
        return prior
        yield

    @adareg.register_rule("rows of W")
    def rows_alone(W, prior, bounds):
        row = yield from adareg.solve_side(W, prior.col, W.shape[-1], bounds)
        return adareg.MatrixNormal(row, prior.col)

    W = torch.randn(3, 5)
    prior = adareg.solve(W)
    assert torch.equal(adareg.solve(W, "frozen", prior=prior).row.dense(), prior.row.dense())
    reg = adareg.AdaReg(torch.nn.Linear(5, 3), rule="rows of W")
    before = shapes(reg.state_dict())
    reg.update()
    assert shapes(reg.state_dict()) == before
    assert torch.equal(reg.priors["weight"].col.dense(), torch.eye(5, dtype=torch.float64))


def shapes(state):
    (sides,) = state["priors"].values()
    return [factor if factor is None else factor.shape for factor in sides["row"] + sides["col"]]


@pytest.mark.usefixtures("_outsider")
def test_what_is_no_rule_is_refused():
    with pytest.raises(ValueError, match="there is a rule 'joint' already; choose another name"):

        @adareg.register_rule("joint")
        def mine(W, prior, bounds):
            yield

    with pytest.raises(TypeError, match="expected a generator function"):
        adareg.register_rule("plain")(lambda W, prior, bounds: prior)
    with pytest.raises(ValueError, match=r"name=3: expected the name of a rule"):
        adareg.register_rule(3)

    @adareg.register_rule("no prior")
    def no_prior(W, prior, bounds):
        return W.gram
        yield

    with pytest.raises(TypeError, match=r"'no prior' returned a Tensor.* of shape \(2, 3\)"):
        adareg.solve(torch.ones(2, 3), "no prior")


@pytest.mark.parametrize("rule", ["alternating", "joint", "official"])
def test_zero_weight_ends_on_the_upper_bound(rule):
    prior = adareg.solve(torch.zeros(3, 5), rule)
    assert (prior.row.eigenvalues() == 1e3).all()
    assert (prior.col.eigenvalues() == 1e3).all()


@pytest.mark.parametrize("rule", ["alternating", "joint", "official"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_non_finite_weights_are_refused(rule, bad, shape):
    W = torch.randn(shape)
    W[1, 1] = bad
    with pytest.raises(adareg.NonFiniteError, match=r"weight: .*NaN or infinite"):
        adareg.solve(W, rule)


def test_a_failed_decomposition_is_tried_again_on_the_cpu(monkeypatch):
    real, calls = torch.linalg.eigh, []

    def fails_once(A):
        calls.append(A)
        if len(calls) == 1:
            raise torch.linalg.LinAlgError("did not converge")
        return real(A)

    W = torch.randn(3, 5)
    expected = adareg.solve(W)
    monkeypatch.setattr(torch.linalg, "eigh", fails_once)
    torch.testing.assert_close(adareg.solve(W).row.dense(), expected.row.dense())
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": torch.zeros(3)}, r"matrix.*\(3,\)"),
        ({"weight": torch.zeros(3, 0)}, r"not empty.*\(3, 0\)"),
        ({"weight": torch.zeros(3, 2, dtype=torch.int64)}, "torch.int64"),
        ({"weight": torch.zeros(3, 2), "rule": "best"}, "rule='best'.*'alternating', 'joint'"),
        ({"weight": torch.zeros(3, 2), "bounds": (2.0, 1.0)}, "bounds"),
        (
            {"weight": torch.zeros(3, 2), "prior": adareg.MatrixNormal.identity(torch.zeros(2, 2))},
            r"\(2, 2\).*\(3, 2\)",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        adareg.solve(**arguments)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 5)])
def test_penalties_after_an_update_are_what_the_pages_say(shape):
    W = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 8
    p, k = shape[0], min(shape)  # singular values far from where the lower bound would matter
    assert adareg.solve(W, "joint").penalty(W).item() == pytest.approx(k * k)
    prior = adareg.solve(W, "alternating")
    assert prior.penalty(W).item() == pytest.approx(p * k)
    for _ in range(20):
        prior = adareg.solve(W, "alternating", prior=prior)
    assert prior.penalty(W).item() == pytest.approx(k * k)
