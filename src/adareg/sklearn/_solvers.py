"""How the weights are moved: Adam and SGD batch by batch, L-BFGS on everything at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import scipy.optimize  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from adareg.nn.regularizer import AdaReg
from adareg.sklearn._data import Samples
from adareg.sklearn._network import Objective
from adareg.sklearn._parameters import Parameters

#: Where ``learning_rate="adaptive"`` gives up.
_SLOWEST = 1e-6


def make_optimizer(model: nn.Module, settings: Parameters) -> Optimizer:
    """The torch optimizer that scikit-learn's parameters describe."""
    parameters = list(model.parameters())
    fused = parameters[0].device.type in ("cpu", "cuda") or None
    if settings.solver == "adam":
        betas = (settings.beta_1, settings.beta_2)
        rate = settings.learning_rate_init
        return Adam(parameters, rate, betas, settings.epsilon, fused=fused)
    return SGD(
        parameters,
        settings.learning_rate_init,
        settings.momentum,
        nesterov=settings.nesterovs_momentum and settings.momentum > 0,
        fused=fused,
    )


def attach(reg: AdaReg | None, optimizer: Optimizer) -> AbstractContextManager[object]:
    """Regularize the optimizer's steps within a ``with`` block.

    SGD gets proximal steps: with the penalty in the gradient it would need a learning rate
    below ``1/(λv²)``, and diverge above it. Adam, which scales its steps, has no such trouble.
    """
    if reg is None:
        return nullcontext()
    return _Attached(reg, optimizer, "coupled" if isinstance(optimizer, Adam) else "proximal")


class _Attached:
    def __init__(self, reg: AdaReg, optimizer: Optimizer, mode: str) -> None:
        self._handle = reg.attach(optimizer, mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._handle.remove()


def run_epoch(
    objective: Objective,
    optimizer: Optimizer,
    samples: Samples,
    order: NDArray[np.intp],
    batch_size: int,
) -> float:
    """One pass over the samples; the mean of the batches' losses, each before its step."""
    total: Any = 0.0  # stays on its device until the end
    for x, y, weight in samples.batches(order, batch_size):
        total += len(y) * objective.gradients(x, y, weight)
        optimizer.step()
    return float(total) / len(samples)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Change SGD's learning rate for the steps to come.

    scikit-learn's velocity is torch's momentum times the learning rate it was gathered at, so
    that momentum is scaled to go on alike.
    """
    (group,) = optimizer.param_groups
    for state in optimizer.state.values():
        if state.get("momentum_buffer") is not None:
            state["momentum_buffer"] *= group["lr"] / rate
    group["lr"] = rate


def scale_with_time(optimizer: Optimizer, settings: Parameters, t: int) -> None:
    """``learning_rate="invscaling"``: after each epoch, SGD alone."""
    if settings.solver == "sgd" and settings.learning_rate == "invscaling":
        set_learning_rate(optimizer, settings.learning_rate_init / (t + 1) ** settings.power_t)


def can_slow_down(optimizer: Optimizer, settings: Parameters) -> bool:
    """``learning_rate="adaptive"``: instead of stopping, go on at a fifth of the rate, if SGD."""
    rate = optimizer.param_groups[0]["lr"]
    if settings.solver != "sgd" or settings.learning_rate != "adaptive" or rate <= _SLOWEST:
        return False
    set_learning_rate(optimizer, rate / 5)
    return True


def minimize(
    model: nn.Module,
    objective: Objective,
    reg: AdaReg | None,
    samples: Samples,
    settings: Parameters,
    progress: Callable[[float], None],
) -> tuple[int, float, bool]:
    """L-BFGS in rounds of ``update_every`` iterations, with an update of the prior between.

    Without a prior it is one round. Rounds end when one finds the gradient below ``tol``
    everywhere at its start: then neither weights nor prior want to move.

    Returns:
        Iterations, the last value without the prior, and whether it converged.
    """
    parameters = list(model.parameters())
    start = nn.utils.parameters_to_vector(parameters).detach().cpu().double().numpy()
    function = _Function(objective, reg, samples, parameters)
    iterations, calls, length = 0, 0, settings.update_every if reg else settings.max_iter
    while True:
        done = _round(function, start, length, iterations, calls, settings, progress)
        start, calls = done.x, calls + done.nfev
        function.move(start)
        iterations += done.nit
        finished = done.status == 0 and (reg is None or done.nit == 0)
        if finished or iterations >= settings.max_iter or calls >= settings.max_fun:
            function(start)
            return iterations, function.loss, finished
        if reg is not None:
            reg.update()


def _round(
    function: _Function,
    start: NDArray[np.float64],
    length: int,
    iterations: int,
    calls: int,
    settings: Parameters,
    progress: Callable[[float], None],
) -> Any:
    return scipy.optimize.minimize(
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


class _Function:
    """Value and gradient as a function of one vector, as scipy wants it."""

    def __init__(
        self,
        objective: Objective,
        reg: AdaReg | None,
        samples: Samples,
        parameters: list[nn.Parameter],
    ) -> None:
        self._objective, self._reg, self._parameters = objective, reg, parameters
        everything = np.arange(len(samples))
        (self._batch,) = samples.batches(everything, len(samples))
        self._sizes = [parameter.numel() for parameter in parameters]
        self.loss = math.nan

    def move(self, vector: NDArray[np.float64]) -> None:
        """Set the weights."""
        like = self._parameters[0]
        there = torch.from_numpy(vector).to(like.device, like.dtype)
        with torch.no_grad():  # into their memory, which the objective looks at
            for parameter, part in zip(self._parameters, there.split(self._sizes), strict=True):
                parameter.copy_(part.view_as(parameter))

    def __call__(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        self.move(vector)
        self.loss = float(self._objective.gradients(*self._batch))
        penalty = 0.0
        if self._reg is not None:
            term = self._reg.penalty()
            term.backward()  # type: ignore[no-untyped-call]
            penalty = term.item()
        return self.loss + penalty, _gradient(self._parameters)


def _gradient(parameters: list[nn.Parameter]) -> NDArray[np.float64]:
    grads: list[Tensor] = [p.grad for p in parameters if p.grad is not None]
    return nn.utils.parameters_to_vector(grads).cpu().double().numpy()
