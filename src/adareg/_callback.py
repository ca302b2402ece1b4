"""What the callbacks for training frameworks share: their settings, and one run of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from adareg.core.rules import check_rule
from adareg.core.spectrum import check_bounds
from adareg.nn.attach import MODES, Attachment
from adareg.nn.regularizer import AdaReg, _is_positive_integer, _resolve_strength
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

    def __post_init__(self) -> None:
        """Check everything that needs no model."""
        later = 1 if self.strength == "auto" and self.n_samples is None else self.n_samples
        _resolve_strength(self.strength, later)
        check_bounds(self.bounds)
        check_rule(self.rule)
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r}: expected one of {', '.join(map(repr, MODES))}")
        every = {"every_n_epochs": self.every_n_epochs, "every_n_steps": self.every_n_steps}
        for name, value in every.items():
            if value is not None and not _is_positive_integer(value):
                raise ValueError(f"{name}={value!r}: expected a positive integer or None")
        if None not in every.values():
            raise ValueError(f"{every}: updates go by epochs or by steps; give one of the two")

    @property
    def epochs(self) -> int | None:
        """Update after every so many epochs; every one unless steps are given."""
        return None if self.every_n_steps else self.every_n_epochs or 1


class Run:
    """A regularizer during a training: attached to the optimizer, updated when it is time.

    Args:
        settings: what the user asked for.
        model: what is trained.
        layers: the settings' layers, or what they stand for in this model.
        dataset: the training set, whose length ``strength="auto"`` needs.
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
        )
        _refuse_sharded(self.regularizer)
        self._settings = settings
        self._epochs = epochs
        self._handle: Attachment | None = None

    @property
    def attached(self) -> bool:
        """Whether an optimizer is regularized now."""
        return self._handle is not None

    def attach(self, optimizer: Optimizer) -> None:
        """Regularize inside this optimizer's steps."""
        settings = self._settings
        self._handle = self.regularizer.attach(optimizer, settings.mode, settings.every_n_steps)

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
        every = self._settings.epochs
        if every is not None and epochs > self._epochs and epochs % every == 0:
            self.regularizer.update()
            self._epochs = epochs

    def metrics(self, prefix: str) -> dict[str, float]:
        """The regularizer's metrics, under names for a logger."""
        return {prefix + name: value for name, value in self.regularizer.metrics().items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly; tensors and plain values only."""
        return {"regularizer": self.regularizer.state_dict(), "epochs": self._epochs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, strength, bounds and rule included."""
        self.regularizer.load_state_dict(state["regularizer"])
        self._epochs = int(state["epochs"])


def _n_samples(settings: Settings, dataset: object) -> int | None:
    if settings.strength != "auto" or settings.n_samples is not None:
        return settings.n_samples
    try:
        return len(dataset)  # type: ignore[arg-type]  # whether it has a length is the question
    except (TypeError, NotImplementedError) as error:
        raise ValueError(
            "strength='auto' is 1/(2·n) and the training data do not say their number n; "
            "give it as n_samples"
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
