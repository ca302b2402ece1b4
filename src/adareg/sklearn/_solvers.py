"""How the weights are moved: Adam and SGD batch by batch, L-BFGS on everything at once.

Adam and SGD are scikit-learn's to the letter (torch puts Adam's epsilon elsewhere, and leaves
the learning rate out of SGD's velocity), on a vector of all parameters, an array or a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray

from adareg.nn.adareg import AdaReg
from adareg.sklearn import _prior as prior
from adareg.sklearn._data import Samples
from adareg.sklearn._network import Objective, Values
from adareg.sklearn._parameters import Parameters

#: Where ``learning_rate="adaptive"`` gives up.
_SLOWEST = 1e-6


class Adam:
    """Kingma and Ba's Adam; epsilon is their "epsilon hat"."""

    def __init__(self, settings: Parameters, gradient: Values) -> None:
        self._rate = settings.learning_rate_init
        self._betas = settings.beta_1, settings.beta_2
        self._epsilon = settings.epsilon
        self._mean, self._square = 0 * gradient, 0 * gradient
        self._steps = 0

    def change(self, gradient: Values) -> Values:
        """What to add to the parameters."""
        b1, b2 = self._betas
        self._steps += 1
        self._mean += (1 - b1) * (gradient - self._mean)
        self._square += (1 - b2) * (gradient * gradient - self._square)
        rate = self._rate * math.sqrt(1 - b2**self._steps) / (1 - b1**self._steps)
        return self._mean * -rate / (self._square**0.5 + self._epsilon)

    def end_epoch(self, seen: int) -> None:
        """Nothing: the learning rate stays."""

    def slow_down(self) -> bool:
        """Whether training should go on at a smaller learning rate: no."""
        return False


class SGD:
    """Gradient descent with momentum, and scikit-learn's three kinds of learning rate."""

    def __init__(self, settings: Parameters, gradient: Values) -> None:
        self.rate = self._initial = settings.learning_rate_init
        self._schedule, self._power = settings.learning_rate, settings.power_t
        self._momentum, self._nesterov = settings.momentum, settings.nesterovs_momentum
        self._velocity = 0 * gradient

    def change(self, gradient: Values) -> Values:
        """What to add to the parameters."""
        self._velocity = self._momentum * self._velocity - self.rate * gradient
        if self._nesterov:
            return self._momentum * self._velocity - self.rate * gradient
        return self._velocity

    def end_epoch(self, seen: int) -> None:
        """``"invscaling"``: the learning rate for the next epoch."""
        if self._schedule == "invscaling":
            self.rate = self._initial / (seen + 1) ** self._power

    def slow_down(self) -> bool:
        """``"adaptive"``: instead of stopping, go on at a fifth of the rate, if it is not tiny."""
        if self._schedule != "adaptive" or self.rate <= _SLOWEST:
            return False
        self.rate /= 5
        return True


STOCHASTIC: dict[str, type[Adam] | type[SGD]] = {"adam": Adam, "sgd": SGD}


def run_epoch(
    objective: Objective,
    optimizer: Adam | SGD,
    reg: AdaReg | None,
    samples: Samples,
    order: NDArray[np.intp],
    batch_size: int,
) -> float:
    """One pass over the samples; the mean of the batches' losses, each before its step."""
    before, after = _prior_changes(optimizer, reg)
    total: Any = 0.0  # stays on its device until the end
    for x, y, weight in samples.batches(order, batch_size):
        total += len(y) * objective.gradients(x, y, weight)
        for add in before:
            add()
        for parameter, change in objective.parts(optimizer.change(objective.gradient)):
            parameter += change
        for shrink in after:
            shrink()
    return float(total) / len(samples)


def _prior_changes(
    optimizer: Adam | SGD, reg: AdaReg | None
) -> tuple[list[prior.Change], list[prior.Change]]:
    """What the prior changes before and after a step.

    SGD gets proximal steps: with the penalty in the gradient it would need a learning rate
    below ``1/(λv²)``, and diverge above it. Adam, which scales its steps, has no such trouble.
    """
    if reg is None:
        return [], []
    if isinstance(optimizer, Adam):
        return prior.add_gradients(reg), []
    return [], prior.shrink(reg, optimizer.rate)


def minimize(
    objective: Objective,
    reg: AdaReg | None,
    samples: Samples,
    settings: Parameters,
    progress: Callable[[float], None],
) -> tuple[int, float, bool]:
    """L-BFGS in rounds of ``update_every`` iterations, with an update of the prior between.

    Without a prior it is one round. With one, weights and prior are settled when a round runs to
    its own end and gains little since the update.

    Returns:
        Iterations, the last value without the prior, and whether it converged.
    """
    function = _Function(objective, reg, samples)
    start, iterations, calls = function.start(), 0, 0
    length = settings.max_iter if reg is None else settings.update_every
    while True:
        before, _ = function(start)
        done = scipy.optimize.minimize(
            function,
            start,
            method="L-BFGS-B",
            jac=True,
            callback=lambda x: progress(function.loss),
            options={
                "maxiter": min(length, settings.max_iter - iterations),
                "maxfun": settings.max_fun - calls,
                "gtol": settings.tol,
            },
        )
        start, iterations, calls = done.x, iterations + done.nit, calls + done.nfev
        function(start)  # the last call was not always at the solution
        finished = done.status == 0 and (reg is None or before - done.fun < settings.tol)
        if finished or iterations >= settings.max_iter or calls >= settings.max_fun:
            return iterations, function.loss, finished
        if reg is not None:
            prior.update(reg)


class _Function:
    """Value and gradient as a function of one float64 vector, as scipy wants it."""

    def __init__(self, objective: Objective, reg: AdaReg | None, samples: Samples) -> None:
        self._objective, self._reg = objective, reg
        (self._batch,) = samples.batches(np.arange(len(samples)), len(samples))
        self.loss = math.nan

    def start(self) -> NDArray[np.float64]:
        """The parameters as they are."""
        pairs = self._objective.parts(self._objective.gradient)
        return np.concatenate([_to_numpy(parameter).ravel() for parameter, _ in pairs])

    def __call__(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        for parameter, values in self._objective.parts(vector):
            parameter[:] = torch.from_numpy(values) if torch.is_tensor(parameter) else values
        self.loss = float(self._objective.gradients(*self._batch))
        penalty = 0.0
        if self._reg is not None:
            term = self._reg.penalty()
            term.backward()
            penalty = term.item()
        return self.loss + penalty, _to_numpy(self._objective.gradient)


def _to_numpy(values: Values) -> NDArray[np.float64]:
    """A float64 copy."""
    return np.array(values.cpu().numpy() if torch.is_tensor(values) else values, dtype=np.float64)
