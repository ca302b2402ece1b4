"""What the callbacks for training frameworks share: their settings, and one run of training."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from adareg.core.spectrum import check_bounds
from adareg.nn.arguments import (
    check_any_rule,
    check_data,
    check_used,
    is_positive_integer,
    make_evidence,
    resolve_strength,
)
from adareg.nn.attach import MODES, Attachment
from adareg.nn.regularizer import AdaReg
from adareg.nn.select import Selection


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user asks for; wrong values are found here, before the training starts."""

    layers: Selection
    strength: float | str
    bounds: tuple[float, float]
    rule: str
    mode: str
    every_n_epochs: int | None
    every_n_steps: int | None
    n_samples: int | None
    likelihood: str | None
    loss_scale: float | None
    model: str | None
    data: Any

    def __post_init__(self) -> None:
        """Check everything that needs no model."""
        check_any_rule(self.rule)
        later = 1 if self.counts_samples and self.n_samples is None else self.n_samples
        if make_evidence(self.rule, later, self.likelihood, self.loss_scale) is None:
            resolve_strength(self.strength, later)
        check_used(self.rule, self.strength, check_bounds(self.bounds))
        check_data(self.rule, self.data)
        if self.model is not None and not isinstance(self.model, str):
            raise ValueError(f"model={self.model!r}: expected the name of a submodule, or None")
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r}: expected one of {', '.join(map(repr, MODES))}")
        every = {"every_n_epochs": self.every_n_epochs, "every_n_steps": self.every_n_steps}
        for name, value in every.items():
            if value is not None and not is_positive_integer(value):
                raise ValueError(f"{name}={value!r}: expected a positive integer or None")
        if None not in every.values():
            raise ValueError(f"{every}: updates go by epochs or by steps; give one of the two")

    @property
    def learns_from_data(self) -> bool:
        """Whether updates look at the data, and come at times of their own."""
        return self.rule == "evidence"

    @property
    def counts_samples(self) -> bool:
        """Whether the size of the training set is needed."""
        return self.learns_from_data or self.strength == "auto"

    @property
    def epochs(self) -> int | None:
        """Update after every so many epochs; every one unless steps, or the rule, say when."""
        if self.every_n_steps or self.every_n_epochs:
            return self.every_n_epochs
        return None if self.learns_from_data else 1

    @property
    def steps(self) -> int | None:
        """Update after every so many steps; None for the rule's own times, if it has any."""
        if self.learns_from_data and self.every_n_epochs:
            return sys.maxsize  # never
        return self.every_n_steps


class Run:
    """A regularizer during a training: attached to the optimizer, updated when it is time.

    Args:
        settings: what the user asked for.
        model: what is regularized, see :func:`network`.
        layers: the settings' layers, or what they stand for in this model.
        dataset: the training set, whose length may be needed.
        epochs: how many epochs the model has been trained for already.
    """

    def __init__(
        self, settings: Settings, model: nn.Module, layers: Selection, dataset: object, epochs: int
    ) -> None:
        self.regularizer = AdaReg(
            model,
            layers,
            settings.strength,
            settings.bounds,
            settings.rule,
            n_samples=_n_samples(settings, dataset),
            likelihood=settings.likelihood,
            loss_scale=settings.loss_scale,
        )
        _refuse_sharded(self.regularizer)
        self._settings = settings
        self._epochs = epochs
        self._handle: Attachment | None = None

    @property
    def attached(self) -> bool:
        """Whether an optimizer is regularized now."""
        return self._handle is not None

    def attach(self, optimizer: Optimizer, epochs: int) -> None:
        """Regularize inside this optimizer's steps, from so many complete epochs on.

        A checkpoint may be written between the last step and the end of an epoch; the update
        that was to come is made now.
        """
        settings = self._settings
        self._handle = self.regularizer.attach(
            optimizer, settings.mode, settings.steps, settings.data
        )
        if settings.learns_from_data and settings.data is None and self._is_due(epochs):
            self._epochs = epochs
            warnings.warn(
                f"the checkpoint was written before the update after epoch {epochs}, which is "
                f"left out: the batches it needs are not in it; with data=… it would be made",
                stacklevel=2,
            )
        self.after_epochs(epochs)

    def detach(self) -> None:
        """Leave the optimizer; the regularizer stays to be looked at."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    def after_epochs(self, epochs: int) -> None:
        """Update if so many complete epochs are a time to; harmless when told twice.

        Frameworks write checkpoints before or after they announce the end of an epoch, and may
        announce it never or again when they resume. The count tells what is still to do.
        """
        if self._is_due(epochs):
            self.regularizer.update()
            self._epochs = epochs

    def _is_due(self, epochs: int) -> bool:
        every = self._settings.epochs
        return every is not None and epochs > self._epochs and epochs % every == 0

    def metrics(self, prefix: str) -> dict[str, float]:
        """The regularizer's metrics, under names for a logger."""
        return {prefix + name: value for name, value in self.regularizer.metrics().items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly; tensors and plain values only."""
        return {"regularizer": self.regularizer.state_dict(), "epochs": self._epochs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, strength, bounds and rule included."""
        rule = state["regularizer"]["rule"]
        if (rule == "evidence") != self._settings.learns_from_data:
            raise ValueError(
                f"the checkpoint is of rule={rule!r}, which has other updates and data than "
                f"rule={self._settings.rule!r}; resume with rule={rule!r}"
            )
        self.regularizer.load_state_dict(state["regularizer"])
        self._epochs = int(state["epochs"])


def network(settings: Settings, model: nn.Module) -> nn.Module:
    """The part of a model that is regularized, and called when updates look at data."""
    if settings.model is None:
        return model
    try:
        return model.get_submodule(settings.model)
    except AttributeError as error:
        raise ValueError(f"model={settings.model!r}: {error}; {submodules(model)}") from error


def submodules(model: nn.Module) -> str:
    """For messages: the submodules that have parameters."""
    names = [name for name, child in model.named_children() if [*child.parameters()]]
    return f"{type(model).__name__} has {', '.join(map(repr, names)) or 'none'}"


def _n_samples(settings: Settings, dataset: object) -> int | None:
    if settings.n_samples is not None or not settings.counts_samples:
        return settings.n_samples
    try:
        return len(dataset)  # type: ignore[arg-type]  # whether it has a length is the question
    except (TypeError, NotImplementedError) as error:
        raise ValueError(
            "strength='auto' and rule='evidence' need the size of the training set, and it has "
            "no length; give it as n_samples"
        ) from error


def _refuse_sharded(reg: AdaReg) -> None:
    """The frameworks' checkpoints take a callback's state from one process: it has but a part."""
    for name, layer in reg.layers.items():
        if hasattr(layer.weight, "device_mesh"):
            raise ValueError(
                f"{name}: the weight is sharded over processes, and so would be the state of this "
                f"callback; leave this layer unsharded, train with plain data parallelism, or "
                f"attach an adareg.AdaReg to the optimizer yourself"
            )
