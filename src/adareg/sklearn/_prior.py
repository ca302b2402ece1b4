"""The learned prior: made, updated, and its part of a step, as ``AdaReg.attach`` has it for torch.

On a CPU that part is done on NumPy's arrays, like the rest of the step: torch's threads and
NumPy's, each waiting for the other's to leave the processor, can make a step of half a millisecond
last a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
from torch import Tensor, nn

from adareg.core.prior import MatrixNormal
from adareg.nn.adareg import AdaReg
from adareg.sklearn import _data
from adareg.sklearn._parameters import Parameters

Change = Callable[[], None]


def prepare(
    settings: Parameters, model: nn.Sequential, seen: int, old: AdaReg | None
) -> AdaReg | None:
    """The regularizer that an estimator's parameters ask for, with what the old one has learned.

    Args:
        settings: the estimator's parameters.
        model: its network.
        seen: how many samples it is trained on.
        old: what it had before, if it goes on from there.
    """
    if not settings.strength:
        return None
    strength = 1 / (2 * seen) if settings.strength == "auto" else settings.strength
    new = AdaReg(model, settings.layers, strength, settings.bounds, settings.rule)
    if old is not None and old.layers.keys() == new.layers.keys():
        new.load_state_dict({**new.state_dict(), "priors": old.state_dict()["priors"]})
    return new


def update(reg: AdaReg) -> None:
    """``reg.update()`` in one thread.

    Torch's other threads would go on waiting for work, on processors that NumPy's want.
    """
    with _threadpools().limit(limits=1):
        reg.update()


@cache
def _threadpools() -> ThreadpoolController:
    """Looking for the libraries that have threads takes milliseconds."""
    return ThreadpoolController()


def add_gradients(reg: AdaReg) -> list[Change]:
    """For each layer, what adds ``2λ·Ωr W Ωc`` to its gradient; good until the next update."""
    return [_adder(reg, name) for name in reg.layers]


def shrink(reg: AdaReg, rate: float) -> list[Change]:
    """For each layer, what takes its weight through the proximal step at a learning rate."""
    return [_shrinker(reg, name, rate * reg.strength) for name in reg.layers]


def _adder(reg: AdaReg, name: str) -> Change:
    prior, W = reg.priors[name], reg.layers[name].weight
    factor = 2 * reg.strength
    grad = W.grad
    assert grad is not None
    W = W.detach()
    if not _data.in_numpy(W.device):
        return partial(_add_on_device, grad, prior, W, factor)
    product: Any = prior.maps.product().apply(Tensor.numpy)
    weight, gradient = W.numpy(), grad.numpy()

    def add() -> None:
        gradient[:] += factor * product(weight)

    return add


def _shrinker(reg: AdaReg, name: str, step: float) -> Change:
    prior, W = reg.priors[name], reg.layers[name].weight.detach()
    if not _data.in_numpy(W.device):
        return partial(_shrink_on_device, W, prior, step)
    proximal: Any = prior.maps.shrinkage(step).apply(Tensor.numpy)
    weight = W.numpy()

    def shrink() -> None:
        weight[:] = proximal(weight)

    return shrink


def _add_on_device(grad: Tensor, prior: MatrixNormal, W: Tensor, factor: float) -> None:
    grad.add_(prior.product(W), alpha=factor)


def _shrink_on_device(W: Tensor, prior: MatrixNormal, step: float) -> None:
    W.copy_(prior.proximal(W, step))
