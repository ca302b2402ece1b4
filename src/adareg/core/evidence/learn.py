"""The evidence rule for a small network, exact: Gauss-Newton steps with an update after each.

Each step decomposes the curvature of all samples once. From it come the next weights
(Levenberg and Marquardt's step, damped in the metric of the prior), how many weights each group's
data determine, the noise, the log evidence, and the log-likelihood of samples left out. Weights
are followed as long as one of the last two grows; the best state on the way is kept, since a prior
that is refitted at every step can end where it fits too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from adareg.core.evidence.information import Information, information
from adareg.core.evidence.perceptron import Linearised, Perceptron
from adareg.core.evidence.tabular import Fitted, TableLikelihood
from adareg.core.evidence.weights import WeightPosterior

#: The noise moves so much of the way to its new estimate, in logarithms.
_STEP = 0.5

#: Pseudo-observations of what a family of groups has in common.
_COMMON = 1.0

#: Weights have settled under their prior when a step gains less than so many nats.
_SETTLED = 0.1

#: Entries of the largest array of rows that is formed at once.
_ENTRIES = 2**24

#: Variances stay within these, so that nothing overflows.
_VARIANCES = 1e-10, 1e4

#: Samples whose rows are formed at once.
_CHUNK = 4096

#: Outputs are looked at so much of a step ahead and behind, to see how they bend along it.
_AHEAD = 0.1

#: A correction for that is at most so much of the step.
_MOST_BEND = 0.4

#: A state with a lower score than the best takes so many times the patience.
_BEHIND = 1.5

#: More damping than this means that no step helps.
_MOST_DAMPING = 1e10


@dataclass(frozen=True)
class Table:
    """What is learned from: standardised inputs and targets, and the weight of each sample."""

    X: Tensor  # (n, d)
    Y: Tensor  # (n, …), as the likelihood has checked them
    weight: Tensor  # (n,)

    @property
    def size(self) -> float:
        """How many samples there are, a sample of weight two being two."""
        return float(self.weight.sum())

    def chunks(self) -> Iterator[Table]:
        """Yield parts of a size that fits memory."""
        for i in range(0, len(self.X), _CHUNK):
            part = slice(i, i + _CHUNK)
            yield Table(self.X[part], self.Y[part], self.weight[part])


@dataclass(frozen=True)
class State:
    """A network, its prior and its noise."""

    w: Tensor  # (P,)
    variances: Tensor  # (groups,), of the prior
    noise: Tensor  # as the likelihood has it


@dataclass(frozen=True)
class Judged:
    """What the samples tell of a state; decomposed when it is asked for."""

    objective: Tensor  # −log posterior density, in nats, up to a constant
    gradient: Tensor  # (P,)
    information: Information
    variances: Tensor  # (P,), of the prior
    size: float  # of the table
    nears: list[Linearised]  # the network at each part of the table

    @cached_property
    def posterior(self) -> WeightPosterior:
        """The posterior of the weights."""
        return self.information.posterior(self.variances)

    def damped(self, damping: float) -> WeightPosterior:
        """Return the posterior under a prior that is stronger by a factor of 1 + damping."""
        if not damping:
            return self.posterior
        return self.information.posterior(self.variances, damping)

    @cached_property
    def leverage(self) -> Tensor:  # (R,)
        """The mean of a sample's leverage, by direction."""
        return self.information.leverage(self.posterior) / self.size

    @property
    def log_evidence(self) -> float:
        """The log evidence."""
        return float(-self.objective - self.posterior.logdet / 2)

    @property
    def outputs(self) -> Tensor:  # (n, K)
        """The outputs at all samples."""
        return torch.cat([near.outputs for near in self.nears])


@dataclass(frozen=True)
class Learned:
    """A state, and what is known of it."""

    network: Perceptron
    state: State
    posterior: WeightPosterior
    leverage: Tensor
    remaining_noise: Tensor  # what belongs beside the variance of the outputs
    noise_variance: Tensor  # (K,): of targets around their outputs, by it
    log_evidence: float
    score: float
    course: tuple[tuple[float, float], ...]  # log evidence and left-out log-likelihood, by refit
    steps: int
    converged: bool


@dataclass(frozen=True)
class Problem:
    """What stays the same from step to step."""

    network: Perceptron
    likelihood: TableLikelihood
    table: Table

    def variances(self, state: State) -> Tensor:  # (P,)
        """Return the prior variance of each weight."""
        return state.variances[self.network.group.to(state.w.device)]

    def objective(self, w: Tensor, state: State) -> Tensor:
        """Return −log posterior density of weights, in nats."""
        total = (w.square() / self.variances(state)).sum() / 2
        for part in self.table.chunks():
            each = self.likelihood.log_likelihood(self.network(w, part.X), part.Y, state.noise)
            total = total - part.weight @ each
        return total

    def judge(self, state: State) -> Judged:
        """Linearise the network at a state, and sum over samples."""
        variances = self.variances(state)
        objective = (state.w.square() / variances).sum() / 2
        gradient, nears, total = state.w / variances, [], None
        for part in self.table.chunks():
            near = self.network.linearise(state.w, part.X)
            value, slope = _log_likelihood(self.likelihood, near.outputs, part, state.noise)
            objective, gradient = objective - value, gradient - near.pull(slope)
            roots = self.likelihood.roots(near.outputs, state.noise)
            if total is None:
                total = information(self.network, self.likelihood, len(self.table.X), len(roots))
            total.add(near, roots, part.weight)
            nears.append(near)
        assert total is not None, "a table has samples"
        total.close()
        return Judged(objective, gradient, total, variances, self.table.size, nears)

    def fitted(self, state: State, now: Judged) -> Fitted:
        """Return what is known of the samples."""

        def covariance(index: Tensor) -> Tensor:
            return covariances(self.network, state.w, now.posterior, self.table.X[index])[1]

        known = (now.outputs, self.table.Y, self.table.weight, state.noise)
        return Fitted(*known, now.leverage, covariance)

    def move(self, state: State, now: Judged, damping: float) -> tuple[State, float, float]:
        """Take a damped step; return also the damping for the next one, and the gain in nats."""
        while damping < _MOST_DAMPING:
            posterior = now.damped(damping)
            step = -posterior.solve(now.gradient)
            if self.likelihood.bends:
                step = step + self._bend(state, now, posterior, step)
            gain = now.objective - self.objective(state.w + step, state)
            if gain > 0:
                ratio = float(gain / _expected_gain(now, step))
                return replace(state, w=state.w + step), _next_damping(damping, ratio), float(gain)
            damping = max(4 * damping, 0.05)
        return state, 1.0, 0.0

    def _bend(self, state: State, now: Judged, posterior: WeightPosterior, step: Tensor) -> Tensor:
        """Return how a step should bend where the outputs do: Transtrum and Sethna's correction.

        ``−½(MᵀM + …)⁻¹ Jᵀ Λ f″``, f″ being the outputs' second derivative along the step; zero
        where it would be more than a part of the step.
        """
        pulled = torch.zeros_like(step)
        for part, near in zip(self.table.chunks(), now.nears, strict=True):
            ahead, behind = (self.network(state.w + h * step, part.X) for h in (_AHEAD, -_AHEAD))
            second = (ahead - 2 * near.outputs + behind) / _AHEAD**2
            roots = self.likelihood.roots(near.outputs, state.noise)
            along = torch.einsum("rnk,nk->rn", roots, second) * part.weight
            pulled = pulled + near.pull(torch.einsum("rn,rnk->nk", along, roots))
        bend = -posterior.solve(pulled) / 2
        of_bend, of_step = ((x.square() / now.variances).sum() for x in (bend, step))
        return bend if bool(of_bend <= _MOST_BEND**2 * of_step) else torch.zeros_like(bend)

    def refit(self, state: State, now: Judged, noise: Tensor) -> State:
        """Return the state with the prior that fits its weights, and nearer to this noise."""
        group = self.network.group.to(state.w.device)
        zeros = torch.zeros_like(state.variances)
        squares = zeros.index_add(0, group, state.w.square())
        gamma = zeros.index_add(0, group, 1 - now.posterior.open()).clamp(min=0)
        variances = state.variances.clone()
        for family in self.network.families:
            variances[family.groups] = _refit(
                squares[family.groups], gamma[family.groups], family.start if family.bias else None
            )
        noise = self.likelihood.approach(state.noise, noise, _STEP)
        return replace(state, variances=variances.clamp(*_VARIANCES), noise=noise)


def _log_likelihood(
    likelihood: TableLikelihood, outputs: Tensor, part: Table, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log-likelihood of some samples, and its gradient at the outputs."""
    with torch.enable_grad():
        o = outputs.detach().requires_grad_()
        value = part.weight @ likelihood.log_likelihood(o, part.Y, noise)
        (slope,) = torch.autograd.grad(value, o)
    return value.detach(), slope


def _expected_gain(now: Judged, step: Tensor) -> Tensor:
    bend = (step.square() / now.variances).sum() + now.information.bend(step)
    return (-(now.gradient @ step) - bend / 2).clamp(min=1e-12)


def _next_damping(damping: float, ratio: float) -> float:
    """Return less damping where the step did what was expected of it, more where it did not."""
    damping = damping / 4 if ratio > 0.75 else 2 * damping + 0.01 if ratio < 0.25 else damping
    return damping if damping >= 1e-3 else 0.0


def _refit(squares: Tensor, gamma: Tensor, start: float | None) -> Tensor:
    """Return MacKay's variances ``Σw²/γ``, drawn towards what is common to a family.

    Biases are drawn towards where they started: there are too few to tell.
    """
    if start is not None:
        return (squares + _COMMON * start) / (gamma + _COMMON)
    common = (squares.sum() + 1e-9) / (gamma.sum() + 1e-9)
    if len(squares) == 1:
        return common.expand(1)
    return (squares + _COMMON * common) / (gamma + _COMMON)


@dataclass
class _Followed:
    """The course of learning: the best state on it, and how long there was no better one."""

    best: State
    score: float = -math.inf
    mark: float = -math.inf
    patience: float = 0.0  # that was needed so far
    course: list[tuple[float, float]] = field(default_factory=list)

    @property
    def log_evidence(self) -> float:
        """The last log evidence."""
        return self.course[-1][0] if self.course else -math.inf

    def note(self, state: State, log_evidence: float, left_out: float, least: float) -> None:
        """Take note of a state; it is better if it gains more than ``least`` nats.

        One that gains less takes patience, and one that is behind takes more.
        """
        score = (log_evidence + left_out) / 2
        self.patience += 1 if score > self.score else _BEHIND
        if score > self.mark + least:
            self.mark, self.patience = score, 0
        if score > self.score:
            self.best, self.score = state, score
        self.course.append((log_evidence, left_out))


@torch.no_grad()
def learn(
    network: Perceptron,
    likelihood: TableLikelihood,
    table: Table,
    start: State,
    *,
    max_steps: int = 200,
    tol: float = 5e-3,
    patience: float | None = None,
    progress: Callable[[float], None] = lambda log_evidence: None,
) -> Learned:
    """Learn weights, prior and noise.

    The prior is refitted once the weights have settled under it, or as soon as the likelihood's
    ``settling`` says. States are compared there.

    Args:
        network: its shape.
        likelihood: what outputs say of targets.
        table: the data.
        start: where to begin.
        max_steps: at most so many steps.
        tol: a state is better if it is so by more than this, in nats for each sample.
        patience: stop after so many refits without a better state; None for the likelihood's.
        progress: called with the latest log evidence after each step.
    """
    patience = likelihood.patience if patience is None else patience
    problem, followed = Problem(network, likelihood, table), _Followed(start)
    state, damping, waited, steps = start, 1.0, 0, 0
    while steps < max_steps and followed.patience < patience:
        now = problem.judge(state)
        moved, damping, gain = problem.move(state, now, damping)
        steps, waited = steps + 1, waited + 1
        if gain <= _SETTLED or waited >= likelihood.settling[bool(followed.course)]:
            told = likelihood.cross_validate(problem.fitted(state, now))
            followed.note(state, now.log_evidence, told.log_likelihood, tol * table.size)
            state, waited = problem.refit(moved, now, told.noise), 0
        else:
            state = moved
        progress(followed.log_evidence)
    best = followed.best if followed.course else state
    now = problem.judge(best)
    remaining = likelihood.remaining_noise(problem.fitted(best, now))
    of_targets = remaining, likelihood.noise_variance(remaining)
    found = (now.posterior, now.leverage, *of_targets, now.log_evidence)
    now.posterior.forget()
    converged = followed.patience >= patience
    return Learned(network, best, *found, followed.score, tuple(followed.course), steps, converged)


def covariances(
    network: Perceptron, w: Tensor, posterior: WeightPosterior, X: Tensor
) -> tuple[Tensor, Tensor]:  # (n, K), (n, K, K)
    """Return outputs, and the covariance of those of each sample."""
    size = max(1, _ENTRIES // (network.size * network.outputs))
    parts = []
    for i in range(0, len(X), size):
        near = network.linearise(w, X[i : i + size])
        rows = near.rows(each_output(near.outputs))
        parts.append((near.outputs, posterior.within_samples(rows)))
    means, found = zip(*parts, strict=True)
    return torch.cat(means), torch.cat(found)


def each_output(outputs: Tensor) -> Tensor:  # (K, n, K)
    """Return the directions of single outputs."""
    K = outputs.shape[-1]
    eye = torch.eye(K, dtype=outputs.dtype, device=outputs.device)
    return eye.unsqueeze(1).expand(K, len(outputs), K)
