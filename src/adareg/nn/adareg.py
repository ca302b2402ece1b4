"""AdaReg: the paper's regularizer, whose updates look at the weights alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from adareg.core.linalg import NonFiniteError, is_sharded
from adareg.core.prior import MatrixNormal
from adareg.core.rules import check_rule, solve_all
from adareg.core.spectrum import BOUNDS, check_bounds
from adareg.nn.alarm import Alarm
from adareg.nn.arguments import is_positive_integer
from adareg.nn.distributed import solve_together
from adareg.nn.groups import Group
from adareg.nn.metrics import clipped
from adareg.nn.regularizer import Regularizer
from adareg.nn.schedule import Never, Schedule
from adareg.nn.select import Selection
from adareg.nn.state import LOW_RANK, Form

#: λ unless given: the paper's.
STRENGTH = 1e-4


class AdaReg(Regularizer):
    """A learned matrix-normal prior on some layers of a model.

    Training minimises ``loss + λ·Σ tr(Ωr W Ωc Wᵀ)`` over the weights; every :meth:`update`
    sets the precisions Ωr, Ωc of each layer in closed form from its weight. The loss is meant
    to be a *mean* over samples. Until the first update Ω = I, which is weight decay of 2λ.

    A sidecar: the model's parameters, keys, hooks and pickling stay as they are. Attached without
    ``update_every`` and without calls of :meth:`update` it learns nothing, and the penalty stays
    weight decay of 2λ.

    Args:
        model: any module. Its selected weights may be float16, bfloat16, float32 or float64,
            on any device; precisions follow the weights.
        layers: ``"last"`` (the paper's choice), ``"fc"``, ``"conv"``, ``"all"``, module names,
            glob patterns, modules, or a list of these; see :func:`adareg.nn.select.select`.
        strength: λ > 0, or ``"auto"`` for ``1/(2·n_samples)``, which makes the penalty the
            prior's share of a maximum a posteriori estimate.
        bounds: smallest and largest eigenvalue (u, v) of every precision.
        rule: ``"alternating"`` (Alg. 1), ``"joint"`` or ``"official"``; see
            :func:`adareg.solve`.
        n_samples: size of the training set, for ``strength="auto"``.
        process_group: the processes that train this model together; those of the
            DistributedDataParallel model, or all there are, unless given.

    >>> import adareg, torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> reg = adareg.AdaReg(model, strength=1e-4)
    >>> reg
    AdaReg(strength=0.0001, bounds=(0.001, 1000.0), rule='alternating', layers={'2': (3, 8)})
    >>> loss = model(torch.randn(5, 4)).square().mean() + reg.penalty()
    >>> loss.backward()
    >>> reg.update()
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Selection = "last",
        strength: float | str = STRENGTH,
        bounds: tuple[float, float] = BOUNDS,
        rule: str = "alternating",
        *,
        n_samples: int | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.bounds = check_bounds(bounds)
        self._strength = resolve_strength(strength, n_samples)
        self.rule = check_rule(rule)
        self._alarm = Alarm()
        super().__init__(model, layers, process_group)

    @property
    def strength(self) -> float:
        """λ; may be set during training."""
        return self._strength

    @strength.setter
    def strength(self, value: float) -> None:
        self._strength = resolve_strength(value, None)

    @property
    def default_schedule(self) -> Schedule:
        """Never: the caller updates."""
        return Never()

    def penalty(self) -> Tensor:
        """Return ``λ·Σ tr(Ωr W Ωc Wᵀ)`` over the selected layers, a scalar to add to the loss."""
        total = super().penalty()
        if total.requires_grad and not self._is_captured_now:
            if self.is_attached:
                total.register_hook(lambda _: self._alarm.say_twice())
            else:
                self._alarm.listen(self.groups, self.strength)
        return total

    def note_step(self, scale: Tensor | None) -> None:
        """Note how hard the loss pushes, for the alarm."""
        if not self._is_captured_now:
            self._alarm.count(self._layers.values(), scale)

    @torch.inference_mode(False)
    def update(self) -> None:
        """Set every selected layer's precisions in closed form from its present weight.

        Raises:
            NonFiniteError: a weight is not finite. It is named, all precisions stay as they
                were, and training can go on. With several processes, all of them raise.
            RuntimeError: another process failed; likewise.
        """
        groups = {", ".join(layer.name for layer in g.layers): g for g in self.groups}
        weights = {name: group.matrix.detach() for name, group in groups.items()}
        priors = {name: group.prior for name, group in groups.items()}
        solved = self._solve(weights, priors)
        if self._captured:
            for name, group in groups.items():
                group.prior.copy_(solved[name])
        else:
            self._groups = [Group(groups[name].layers, solved[name]) for name in groups]
        if not self._captured:
            self._alarm.judge(self._groups, self.strength, self.is_attached)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        super().load_state_dict(state)
        self._alarm.sleep()

    def _own(self) -> dict[str, Any]:
        return {"_alarm": Alarm()}

    def _solve(
        self, weights: dict[str, Tensor], priors: dict[str, MatrixNormal]
    ) -> dict[str, MatrixNormal]:
        team = self._team()
        if team is not None and (team.size > 1 or any(map(is_sharded, weights.values()))):
            return solve_together(weights, priors, self.rule, self.bounds, team)
        try:
            return solve_all(weights, priors, self.rule, self.bounds)
        except NonFiniteError as error:
            raise NonFiniteError(self._name_non_finite()) from error

    def _layer_metrics(self, weight: Tensor, prior: MatrixNormal) -> dict[str, Tensor]:
        """Add ``clipped_low`` and ``clipped_high``, the shares of eigenvalues on the bounds."""
        return {**super()._layer_metrics(weight, prior), **clipped(prior, self.bounds)}

    @property
    def _form(self) -> Form:
        return LOW_RANK

    def _settings(self) -> dict[str, Any]:
        return {"strength": self.strength, "bounds": list(self.bounds), "rule": self.rule}

    def _read_settings(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "_strength": resolve_strength(state["strength"], None),
            "bounds": check_bounds(tuple(state["bounds"])),
            "rule": check_rule(state["rule"]),
        }

    def _describe(self) -> str:
        return f"strength={self.strength:g}, bounds={self.bounds}, rule={self.rule!r}"

    def _name_non_finite(self) -> str:
        bad = self._not_finite()
        reason = "has NaN or infinite entries" if bad else "is so large that its square overflows"
        names = ", ".join(bad or self._layers)
        return f"{names}: the weight {reason}; all precisions are kept as they were"


def resolve_strength(strength: float | str, n_samples: int | None) -> float:
    """Return λ as a number."""
    if strength == "auto":
        if not is_positive_integer(n_samples):
            raise ValueError(
                f"strength='auto' is 1/(2·n_samples) and needs the size of the training set; "
                f"got n_samples={n_samples!r}, expected a positive integer"
            )
        return 1 / (2 * int(n_samples))  # type: ignore[arg-type]
    if n_samples is not None:
        raise ValueError(f"n_samples={n_samples!r} is used only with strength='auto'")
    if not isinstance(strength, Real) or not 0 < strength < math.inf:
        raise ValueError(
            f"strength={strength!r}: expected a positive number, or 'auto' with n_samples"
        )
    return float(strength)
