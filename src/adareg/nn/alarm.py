"""An alarm for penalties that destroy a network.

Whatever its scale, a weight in the middle of its precisions' bounds is pulled towards zero by
``⟨W, 2λ·Ωr W Ωc⟩ = 2λ·k²`` after an update, k being its shorter side. The loss can hold against
that what it pushes, ``−⟨W, ∂loss/∂W⟩``, and this is bounded: in a network of ReLU layers it is the
same for all layers, and for the cross-entropy of ten classes at most 1.1. It is near its largest
early in training and falls to nothing as the data are learned. So a pull that is several times
the largest push so far will not stop before the layer is gone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from adareg.core.linalg import is_sharded
from adareg.nn.groups import Group
from adareg.nn.select import Layer

#: A pull of more than so many times the largest push is alarming.
TOO_STRONG = 5.0

#: The least push that is reckoned with, for losses of the order of one: training may not have begun
#: to learn, or may have started from a network that knows its data already.
LEAST_PUSH = 0.3

#: A weight that has lost all but this share of its largest norm is alarming, too.
SHRUNK = 0.1

#: So many steps without an update are alarming.
IDLE = 1000


class PenaltyWarning(UserWarning):
    """A penalty destroys the network, or a regularizer is not used as it seems to be meant."""


class Alarm:
    """Compares the penalty's pull at each layer with the loss's push, and warns once of each kind.

    Pushes are noted at the first, second, fourth, eighth … step and update, which costs next to
    nothing. Sharded weights are passed over: looking at them would mean traffic.
    """

    def __init__(self) -> None:
        self._awake = True
        self._steps = 0
        self._updates = 0
        self._pushes: list[Tensor] = []
        self._largest: dict[str, float] = {}
        self._said: set[str] = set()

    def sleep(self) -> None:
        """Judge no more: training goes on from a state, and its largest push is not known."""
        self._awake = False

    def count(self, layers: Iterable[Layer], scale: Tensor | None) -> None:
        """Count a step of an attached optimizer, and note the pushes if it is time.

        Args:
            layers: with the gradients of the loss alone.
            scale: that the gradients are multiplied by, in a fused optimizer.
        """
        self._steps += 1
        if is_power_of_two(self._steps) and self._awake:
            self._note(layers, scale)
        if self._steps == IDLE and not self._updates:
            self._say(
                f"{IDLE} steps without an update: the prior has learned nothing, and the penalty "
                f"is weight decay; give attach() update_every=…, or call update()"
            )

    def listen(self, groups: Iterable[Group], strength: float) -> None:
        """Count a penalty that is part of the loss, and note the pushes of its backward pass."""
        self._steps += 1
        if not (is_power_of_two(self._steps) and self._awake):
            return
        for layer, pull in _pulls(_whole(groups), strength):
            if not layer.parametrized and layer.weight.requires_grad:
                self._note_once(layer.weight, pull)

    def _note_once(self, weight: Tensor, pull: Tensor) -> None:
        def note(weight: Tensor) -> None:
            handle.remove()
            if weight.grad is not None and not weight.grad.is_sparse:
                self._pushes.append((pull - _along(weight)).abs())

        handle = weight.register_post_accumulate_grad_hook(note)

    def _note(self, layers: Iterable[Layer], scale: Tensor | None) -> None:
        for layer in layers:
            grad = None if layer.parametrized else layer.weight.grad
            if grad is not None and not (grad.is_sparse or is_sharded(grad)):
                push = _along(layer.weight).abs()
                self._pushes.append(push if scale is None else push / scale.to(push.device))

    def judge(self, groups: Iterable[Group], strength: float, attached: bool) -> None:
        """Warn if the new priors are too strong, or a weight has all but gone.

        This looks at the first, second, fourth, eighth … update.
        """
        self._updates += 1
        if not (is_power_of_two(self._updates) and self._awake):
            return
        groups = _whole(groups)
        if attached:
            self._note([layer for group in groups for layer in group.layers], None)
        if not (groups and self._pushes):
            return
        peak = max(LEAST_PUSH, *(float(push) for push in self._pushes))
        self._pushes = [torch.tensor(peak, dtype=torch.float64)]
        pulls = [(float(pull), layer.name) for layer, pull in _pulls(groups, strength)]
        self._judge_pull(*max(pulls), peak, strength)
        for group in groups:
            for layer in group.layers:
                self._judge_norm(layer.name, float(layer.weight.detach().norm()))

    def _judge_pull(self, pull: float, name: str, push: float, strength: float) -> None:
        if pull > TOO_STRONG * push:
            self._say(
                f"{name}: the penalty pulls at this weight {pull / push:.0f} times as hard as the "
                f"loss has pushed at most ({pull:.2g} against {push:.2g}), and will shrink it to "
                f"nothing; use a strength of at most {_one_digit(strength * push / pull)} instead "
                f"of {strength:.2g}, or leave this layer out: layers='last' is the paper's choice",
                "pull",
            )

    def _judge_norm(self, name: str, norm: float) -> None:
        largest = self._largest[name] = max(norm, self._largest.get(name, 0.0))
        if norm < SHRUNK * largest:
            self._say(
                f"{name}: the norm of this weight has fallen from {largest:.2g} to {norm:.2g} "
                f"since the first update; use a smaller strength, or leave this layer out",
                "norm",
            )

    def say_twice(self) -> None:
        """Warn of a penalty that is part of the loss beside an attached one."""
        self._say(
            "penalty() is part of the loss although the regularizer is attached to the optimizer, "
            "so that it counts twice; leave one of them out",
            "twice",
        )

    def _say(self, message: str, kind: str = "idle") -> None:
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(message, PenaltyWarning, stacklevel=2)


def _whole(groups: Iterable[Group]) -> list[Group]:
    """Return the groups whose weights are not sharded."""
    return [group for group in groups if not is_sharded(group.layers[0].weight)]


@torch.no_grad()
def _pulls(groups: Iterable[Group], strength: float) -> list[tuple[Layer, Tensor]]:
    """Return each layer with ``⟨W, 2λ·Ωr W Ωc⟩``."""
    found: list[tuple[Layer, Tensor]] = []
    for group in groups:
        pulls = 2 * strength * group.prior.penalty(group.matrix)
        each = pulls.reshape(len(group.layers), -1).sum(-1).unbind()
        found.extend(zip(group.layers, each, strict=True))
    return found


def _along(weight: Tensor) -> Tensor:
    """Return ``⟨W, ∂/∂W⟩``."""
    assert weight.grad is not None
    return (weight.detach() * weight.grad).sum(dtype=torch.float64)


def is_power_of_two(x: int) -> bool:
    """Return if x is a power of two."""
    return x & (x - 1) == 0


def _one_digit(x: float) -> str:
    """Return x rounded down to one significant digit."""
    unit = 10.0 ** math.floor(math.log10(x))
    return f"{math.floor(x / unit) * unit:.0e}"
