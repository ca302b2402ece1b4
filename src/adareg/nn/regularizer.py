"""What all regularizers have in common: layers, priors, penalty, attachment, metrics, state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from adareg.core.linalg import local
from adareg.core.prior import MatrixNormal
from adareg.nn.attach import Attachment, check_mode
from adareg.nn.distributed import Team, group_of
from adareg.nn.groups import Group, make_groups, placement
from adareg.nn.metrics import layer_metrics
from adareg.nn.schedule import Schedule, as_schedule
from adareg.nn.select import Layer, Selection, by_name, paths, refuse_replaced, select
from adareg.nn.state import Form, dump, load, stored

_FORMAT = 2


class Regularizer(ABC):
    """A learned matrix-normal prior on some layers of a model.

    Training minimises ``loss + λ·Σ tr(Ωr W Ωc Wᵀ)`` over the weights; every :meth:`update` sets
    the precisions Ωr, Ωc anew. The two subclasses, :class:`adareg.AdaReg` and
    :class:`adareg.EvidenceReg`, differ in the update and in what λ is.

    A sidecar: the model's parameters, keys, hooks and pickling stay as they are.
    """

    def __init__(
        self, model: nn.Module, layers: Selection, process_group: ProcessGroup | None
    ) -> None:
        self.model = model
        self._process_group = process_group
        self._layers = {layer.name: layer for layer in select(model, layers)}
        self._paths = paths(model, self._layers.values())
        self._regroup({name: self._start(layer.blank) for name, layer in self._layers.items()})
        self._attachment: Attachment | None = None
        self._captured = False
        self._steps, self._last_due = 0, 0

    # What a regularizer must say

    @property
    @abstractmethod
    def strength(self) -> float:
        """λ."""

    @abstractmethod
    def update(self) -> None:
        """Set every selected layer's precisions anew."""

    @property
    @abstractmethod
    def default_schedule(self) -> Schedule:
        """When an attached regularizer updates, unless ``update_every`` says otherwise."""

    @property
    @abstractmethod
    def _form(self) -> Form:
        """The factors that a state holds of each prior."""

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """Return what a state holds beside the priors: plain values under fixed keys."""

    @abstractmethod
    def _read_settings(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return attributes, from what :meth:`_settings` returned; change nothing."""

    @abstractmethod
    def _describe(self) -> str:
        """Return the arguments to be shown, as in a call."""

    def _start(self, weight: Tensor) -> MatrixNormal:
        """Return the prior of a layer before the first update."""
        return MatrixNormal.identity(weight)

    def proximal_rate(self, group: Mapping[str, Any]) -> float | Tensor:
        """Return the step of ``mode="proximal"`` for a parameter group, but for λ."""
        rate: float | Tensor = group["lr"]
        return rate

    def check_proximal(self, optimizer: Optimizer) -> None:
        """Raise a ValueError if ``mode="proximal"`` would be wrong with this optimizer."""
        if not all("lr" in group for group in optimizer.param_groups):
            kind = type(optimizer).__name__
            raise ValueError(f"{kind} has no learning rate 'lr', which mode='proximal' needs")

    def note_step(self, scale: Tensor | None) -> None:
        """Look at a step of the attached optimizer, the gradients being those of the loss.

        By default nothing is done.

        Args:
            scale: that the gradients are multiplied by, in a fused optimizer.
        """
        del scale

    # Layers and priors

    @property
    def layers(self) -> dict[str, Layer]:
        """The selected layers, by name."""
        return dict(self._layers)

    @property
    def priors(self) -> dict[str, MatrixNormal]:
        """The current prior of every selected layer, by name."""
        return self._by_name(self.groups)

    @property
    def groups(self) -> list[Group]:
        """The selected layers and their priors, batched by shape, where the weights are now.

        Raises:
            RuntimeError: a layer has been replaced by another since.
        """
        if not torch.compiler.is_compiling():
            refuse_replaced(self._paths)
        if placement(self._layers.values()) != self._placement:
            self._regroup(self._by_name(self._groups))
        self._notice_capture()
        return self._groups

    def penalty(self) -> Tensor:
        """Return ``λ·Σ tr(Ωr W Ωc Wᵀ)`` over the selected layers, a scalar to add to the loss."""
        terms = [group.prior.penalty(group.matrix).sum() for group in self.groups]
        total = terms[0]
        for term in terms[1:]:
            total = total + term.to(total.device)
        return self.strength * total

    # Training

    def attach(
        self,
        optimizer: Optimizer,
        mode: str = "coupled",
        update_every: int | Schedule | None = None,
    ) -> Attachment:
        """Regularize inside ``optimizer.step()``, so that the training loop need not change.

        It sees the gradients as the optimizer does: after accumulation, unscaling and
        clipping; a step that a ``GradScaler`` skips does nothing. As with weight decay, a
        weight without a gradient is left alone. Do not add :meth:`penalty` to the loss as well.

        Args:
            optimizer: holds every selected weight. One that Accelerate has wrapped may be
                given, too.
            mode: ``"coupled"`` adds the penalty's gradient ``2λ·Ωr W Ωc`` to each weight's own,
                which is the same as adding the penalty to the loss. ``"proximal"`` shrinks the
                weights after the step, exactly and at any learning rate, as AdamW does for
                weight decay.
            update_every: call :meth:`update` after every ``update_every`` optimizer steps, or
                when a :class:`adareg.nn.schedule.Schedule` says so; None for the default.

        Returns:
            A handle; ``handle.remove()`` detaches.

        Raises:
            ValueError: an argument is wrong, the optimizer does not hold a selected weight, or
                the mode cannot work on it.
            RuntimeError: it is attached already.
        """
        check_mode(mode)
        schedule = as_schedule(update_every, self.default_schedule)
        if self.is_attached:
            raise RuntimeError(
                f"this {type(self).__name__} is attached already; call remove() on its handle first"
            )
        self._attachment = Attachment(self, optimizer, mode, schedule)
        return self._attachment

    @property
    def is_attached(self) -> bool:
        """True while an optimizer's steps include the penalty."""
        return self._attachment is not None and self._attachment.active

    def count_steps(self, steps: int, schedule: Schedule | None = None) -> bool:
        """Count optimizer steps, and return if an update is due.

        An attachment does so; call it in a loop that is not attached.
        """
        self._steps += steps
        due = (schedule or self.default_schedule).is_due(self._steps, self._last_due)
        if due:
            self._last_due = self._steps
        return due

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """Return what to log: the penalty, and for each layer the state of weight and prior.

        ``penalty`` is :meth:`penalty`. For each layer: ``stable_rank`` and ``spectral_norm``
        of the weight (of grouped weights the mean and the largest), and
        ``effective_weight_decay``, the weight decay that would give the same penalty,
        ``2λ·tr(Ωr W Ωc Wᵀ)/‖W‖²`` (0 for a zero weight). :class:`adareg.AdaReg` adds
        ``clipped_low`` and ``clipped_high``, the share of the precisions' eigenvalues on the
        bounds u and v; :class:`adareg.EvidenceReg` what its last update found.
        """
        metrics = {"penalty": 0.0}
        for name, prior in self.priors.items():
            values = self._layer_metrics(self._layers[name].matrix, prior)
            keys, numbers = list(values), torch.stack(list(values.values())).tolist()
            penalty, *rest = numbers
            metrics["penalty"] += penalty
            metrics.update({f"{name}/{key}": x for key, x in zip(keys[1:], rest, strict=True)})
        return metrics

    def _layer_metrics(self, weight: Tensor, prior: MatrixNormal) -> dict[str, Tensor]:
        """Return scalars by name, the penalty first."""
        return layer_metrics(weight, prior, self.strength)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on exactly; tensors and plain values only.

        Shapes and keys do not change during training, as ``torch.distributed.checkpoint`` needs
        it. The factors of a sharded weight are sharded, too.
        """
        return {
            "format": _FORMAT,
            **self._settings(),
            "steps": self._steps,
            "last_due": self._last_due,
            "priors": dump(self.priors, self._form),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, its settings included.

        Raises:
            ValueError: the state is of another model, another selection of layers, or no
                state of such a regularizer at all. Nothing is changed then.
        """
        kind = type(self).__name__
        try:
            if state["format"] != _FORMAT:
                raise ValueError(f"state has format {state['format']!r}, expected {_FORMAT}")
            settings = self._read_settings(state)
            steps, last_due = int(state["steps"]), int(state["last_due"])
            factors = stored(state["priors"])
        except (KeyError, TypeError, AttributeError) as error:
            missing = isinstance(error, KeyError)
            reason = f"it has no entry {error.args[0]!r}" if missing else str(error)
            raise ValueError(f"this is not the state of an {kind}: {reason}") from error
        priors = load(factors, self._layers, self._form)
        vars(self).update(settings)
        self._steps, self._last_due = steps, last_due
        self._regroup(priors)

    def _own(self) -> dict[str, Any]:
        """Return attributes that a copy needs and a state does not hold."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """For copy and pickle: the model comes along, an attachment to an optimizer does not."""
        return {
            "model": self.model,
            "layers": list(self._layers),
            "own": self._own(),
            "state": self.state_dict(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.model = state["model"]
        self._layers = {layer.name: layer for layer in by_name(self.model, state["layers"])}
        self._paths = paths(self.model, self._layers.values())
        self._attachment, self._captured, self._process_group = None, False, None
        vars(self).update(state["own"])
        self.load_state_dict(state["state"])

    def __repr__(self) -> str:
        shapes = {name: tuple(layer.blank.shape) for name, layer in self._layers.items()}
        return f"{type(self).__name__}({self._describe()}, layers={shapes})"

    # Several processes, devices, captured graphs

    def _team(self) -> Team | None:
        """Return the processes that train this model together; None for one alone."""
        group = group_of(self.model, self._process_group)
        return None if group is None else Team(group, self._not_finite)

    def _regroup(self, priors: Mapping[str, MatrixNormal]) -> None:
        self._groups = make_groups(self._layers, priors)
        self._placement = placement(self._layers.values())

    def _by_name(self, groups: Iterable[Group]) -> dict[str, MatrixNormal]:
        priors = {one.layers[0].name: one.prior for group in groups for one in group.singles()}
        return {name: priors[name] for name in self._layers}

    def _notice_capture(self) -> None:
        """A captured graph goes on reading the tensors it saw, so updates must write into them."""
        if self._is_captured_now and not torch.compiler.is_compiling():
            self._captured = True

    @property
    def _is_captured_now(self) -> bool:
        """True while a graph is made of what is running, which must not wait for numbers."""
        if torch.compiler.is_compiling():
            return True
        on_gpu = any(device.type == "cuda" for device, *_ in self._placement)
        return on_gpu and torch.cuda.is_current_stream_capturing()

    def _not_finite(self) -> list[str]:
        """Return the layers whose weight, or this process's part of it, is not finite."""
        return [n for n, x in self._layers.items() if not local(x.weight).isfinite().all()]
