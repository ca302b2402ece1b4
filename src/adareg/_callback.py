"""What the callbacks for training frameworks share: their settings, and one run of training."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from adareg.core.evidence.constants import DEFAULTS
from adareg.core.evidence.likelihood import Likelihood, as_likelihood
from adareg.core.rules import check_rule
from adareg.core.spectrum import BOUNDS, check_bounds
from adareg.nn.adareg import STRENGTH, AdaReg, resolve_strength
from adareg.nn.arguments import check_n_samples, is_positive_integer
from adareg.nn.attach import Attachment, check_mode
from adareg.nn.evidence.regularizer import EvidenceReg, check_dropout, check_loss_scale
from adareg.nn.evidence.sources import Given
from adareg.nn.regularizer import Regularizer
from adareg.nn.schedule import Never
from adareg.nn.select import Selection


class Recipe(ABC):
    """What a user asks for of a regularizer, before there is a model.

    Wrong values are found when it is made, before the training starts.
    """

    layers: Selection
    n_samples: int | None

    #: Update after every epoch, unless something else is asked for.
    by_epochs: bool

    @property
    @abstractmethod
    def counts_samples(self) -> bool:
        """True if the size of the training set is needed."""

    @abstractmethod
    def make(self, model: nn.Module, layers: Selection, n_samples: int | None) -> Regularizer:
        """Return the regularizer."""

    @property
    def options(self) -> dict[str, Any]:
        """More arguments for ``attach``."""
        return {}

    @property
    def needs_batches(self) -> bool:
        """True if an update needs the batches of the training before it."""
        return False


@dataclass(frozen=True)
class AdaRegRecipe(Recipe):
    """An :class:`adareg.AdaReg`."""

    layers: Selection
    strength: float | str
    bounds: tuple[float, float]
    rule: str
    n_samples: int | None

    by_epochs = True

    def __post_init__(self) -> None:
        later = 1 if self.counts_samples and self.n_samples is None else self.n_samples
        resolve_strength(self.strength, later)
        check_bounds(self.bounds)
        check_rule(self.rule)

    @property
    def counts_samples(self) -> bool:
        """True for ``strength="auto"``."""
        return self.strength == "auto"

    def make(self, model: nn.Module, layers: Selection, n_samples: int | None) -> AdaReg:
        """Return it."""
        return AdaReg(model, layers, self.strength, self.bounds, self.rule, n_samples=n_samples)


@dataclass(frozen=True)
class EvidenceRecipe(Recipe):
    """An :class:`adareg.EvidenceReg`, with the data for its updates."""

    likelihood: str | Likelihood
    layers: Selection
    loss_scale: float
    n_samples: int | None
    data: Any
    dropout: str | None = None

    by_epochs = False

    def __post_init__(self) -> None:
        as_likelihood(self.likelihood)
        check_loss_scale(self.loss_scale)
        check_dropout(self.dropout)
        if self.n_samples is not None:
            check_n_samples(self.n_samples)
        if self.data is not None:
            Given(self.data, DEFAULTS.samples)

    @property
    def counts_samples(self) -> bool:
        """True."""
        return True

    def make(self, model: nn.Module, layers: Selection, n_samples: int | None) -> EvidenceReg:
        """Return it."""
        assert n_samples is not None, "counts_samples"
        more = (self.likelihood, layers, self.loss_scale)
        return EvidenceReg(model, n_samples, *more, dropout=self.dropout)

    @property
    def options(self) -> dict[str, Any]:
        """The data."""
        return {"data": self.data}

    @property
    def needs_batches(self) -> bool:
        """True without data."""
        return self.data is None


class WithAdaReg:
    """Arguments of the callbacks that train with :class:`adareg.AdaReg`."""

    def __init__(
        self,
        layers: Selection = "last",
        strength: float | str = STRENGTH,
        bounds: tuple[float, float] = BOUNDS,
        rule: str = "alternating",
        *,
        n_samples: int | None = None,
        **options: Any,
    ) -> None:
        recipe = AdaRegRecipe(layers, strength, bounds, rule, n_samples)
        super().__init__(recipe, **options)  # type: ignore[call-arg]  # the framework's callback


class WithEvidence:
    """Arguments of the callbacks that train with :class:`adareg.EvidenceReg`."""

    def __init__(
        self,
        likelihood: str | Likelihood,
        layers: Selection = "all",
        loss_scale: float = 1.0,
        *,
        n_samples: int | None = None,
        data: Any = None,
        dropout: str | None = None,
        **options: Any,
    ) -> None:
        recipe = EvidenceRecipe(likelihood, layers, loss_scale, n_samples, data, dropout)
        super().__init__(recipe, **options)  # type: ignore[call-arg]  # the framework's callback


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a callback trains with the regularizer of its recipe."""

    recipe: Recipe
    mode: str = "coupled"
    every_n_epochs: int | None = None
    every_n_steps: int | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        """Check everything that needs no model."""
        check_mode(self.mode)
        if self.model is not None and not isinstance(self.model, str):
            raise ValueError(f"model={self.model!r}: expected the name of a submodule, or None")
        every = {"every_n_epochs": self.every_n_epochs, "every_n_steps": self.every_n_steps}
        for name, value in every.items():
            if value is not None and not is_positive_integer(value):
                raise ValueError(f"{name}={value!r}: expected a positive integer or None")
        if None not in every.values():
            raise ValueError(f"{every}: updates go by epochs or by steps; give one of the two")

    @property
    def epochs(self) -> int | None:
        """Update after every so many epochs; None if steps decide."""
        if self.every_n_steps or self.every_n_epochs:
            return self.every_n_epochs
        return 1 if self.recipe.by_epochs else None

    @property
    def update_every(self) -> int | Never | None:
        """When the optimizer's steps are followed by an update; never if epochs decide."""
        return Never() if self.epochs is not None else self.every_n_steps


class Run:
    """A regularizer during a training: attached to the optimizer, updated when it is time.

    Args:
        settings: what the user asked for.
        model: what is regularized, see :func:`network`.
        layers: the recipe's layers, or what they stand for in this model.
        dataset: the training set, whose length may be needed.
        epochs: how many epochs the model has been trained for already.
    """

    def __init__(
        self, settings: Settings, model: nn.Module, layers: Selection, dataset: object, epochs: int
    ) -> None:
        n_samples = _n_samples(settings.recipe, dataset)
        self.regularizer = settings.recipe.make(model, layers, n_samples)
        _refuse_sharded(self.regularizer)
        self._settings = settings
        self._epochs = epochs
        self._handle: Attachment | None = None

    @property
    def attached(self) -> bool:
        """True while an optimizer is regularized."""
        return self._handle is not None

    def attach(self, optimizer: Optimizer, epochs: int) -> None:
        """Regularize inside this optimizer's steps, from so many complete epochs on.

        A checkpoint may be written between the last step and the end of an epoch; the update
        that was to come is made now.
        """
        settings, recipe = self._settings, self._settings.recipe
        self._handle = self.regularizer.attach(
            optimizer, settings.mode, settings.update_every, **recipe.options
        )
        if recipe.needs_batches and self._is_due(epochs):
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
        """Update if it is time to, after so many complete epochs; twice is harmless.

        Frameworks write checkpoints before or after they announce the end of an epoch, and may
        announce it never or again when they resume. The count says what is still to do.
        """
        if self._is_due(epochs):
            self.regularizer.update()
            self._epochs = epochs

    def _is_due(self, epochs: int) -> bool:
        every = self._settings.epochs
        return every is not None and epochs > self._epochs and epochs % every == 0

    def metrics(self, prefix: str) -> dict[str, float]:
        """Return the regularizer's metrics, under names for a logger."""
        return {prefix + name: value for name, value in self.regularizer.metrics().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on exactly; tensors and plain values only."""
        return {"regularizer": self.regularizer.state_dict(), "epochs": self._epochs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, the regularizer's settings included."""
        self.regularizer.load_state_dict(state["regularizer"])
        self._epochs = int(state["epochs"])


def network(settings: Settings, model: nn.Module) -> nn.Module:
    """Return the part of a model that is regularized, and called when updates look at data."""
    if settings.model is None:
        return model
    try:
        return model.get_submodule(settings.model)
    except AttributeError as error:
        raise ValueError(f"model={settings.model!r}: {error}; {submodules(model)}") from error


def submodules(model: nn.Module) -> str:
    """Return the submodules that have parameters, for messages."""
    names = [name for name, child in model.named_children() if [*child.parameters()]]
    return f"{type(model).__name__} has {', '.join(map(repr, names)) or 'none'}"


def _n_samples(recipe: Recipe, dataset: object) -> int | None:
    if recipe.n_samples is not None or not recipe.counts_samples:
        return recipe.n_samples
    try:
        return len(dataset)  # type: ignore[arg-type]  # the error says whether it has a length
    except (TypeError, NotImplementedError) as error:
        raise ValueError(
            "the size of the training set is needed, and it has no length; give it as n_samples"
        ) from error


def _refuse_sharded(reg: Regularizer) -> None:
    """The frameworks' checkpoints take a callback's state from one process: it has but a part."""
    for name, layer in reg.layers.items():
        if hasattr(layer.weight, "device_mesh"):
            raise ValueError(
                f"{name}: the weight is sharded over processes, and so would be the state of this "
                f"callback; leave this layer unsharded, train with plain data parallelism, or "
                f"attach an adareg.AdaReg to the optimizer yourself"
            )
