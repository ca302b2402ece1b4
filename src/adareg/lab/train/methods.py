"""Every way of regularizing that is compared: one table."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from adareg.lab.train.config import Config
from adareg.lab.train.ingredients import (
    Augmentation,
    BatchNorm,
    DeCov,
    Dropout,
    EarlyStopping,
    EvidencePrior,
    Ingredient,
    LaplacePrior,
    PaperPrior,
    Scaled,
    WeightDecay,
)
from adareg.lab.train.networks import Architecture


@dataclass(frozen=True)
class Space:
    """The range of a strength that is tuned.

    Args:
        of: the ingredient with the strength.
        low: the smallest value.
        high: the largest.
        log: orders of magnitude are equally likely, rather than values.
    """

    of: type[Scaled]
    low: float
    high: float
    log: bool = True

    def at(self, quantile: float) -> float:
        """Return the value below which this share of all draws lies."""
        if self.log:
            return float(self.low * (self.high / self.low) ** quantile)
        return self.low + (self.high - self.low) * quantile


@dataclass(frozen=True)
class Method:
    """Some ingredients, each at the experiment's strength or at one of its own.

    Args:
        label: what readers see.
        ingredients: no two of a kind; a step takes them in this order.
        tunes: what is tuned in cells with trials; None for nothing.
        tuned_as: the method whose trials decide; empty for its own.
    """

    label: str
    ingredients: tuple[Ingredient, ...] = ()
    tunes: Space | None = None
    tuned_as: str = ""

    @property
    def apart(self) -> Hashable:
        """Equal for methods that can share a stack."""
        return frozenset(each for each in self.ingredients if each.apart)

    @property
    def holds_out(self) -> bool:
        """A fifth of the samples is held out of training."""
        return any(each.holds_out for each in self.ingredients)

    def ingredients_in(self, config: Config) -> list[Ingredient]:
        """Return the ingredients that do something in a cell, its augmentation among them."""
        return [each for each in (*self.ingredients, Augmentation()) if each.is_used(config)]

    def network(self, config: Config) -> dict[str, Any]:
        """Return arguments of ``Network``."""
        return {
            k: v for each in self.ingredients_in(config) for k, v in each.network(config).items()
        }

    def optimizer(self, config: Config) -> dict[str, Any]:
        """Return arguments of ``torch.optim.Adam``, for a network alone."""
        return {
            k: v for each in self.ingredients_in(config) for k, v in each.optimizer(config).items()
        }

    def check(self, config: Config, architecture: Architecture) -> None:
        """Raise ``ValueError`` if an ingredient has no place in a cell."""
        for each in self.ingredients_in(config):
            try:
                each.check(config, architecture)
            except ValueError as error:
                raise ValueError(f"{self.label}: {error}") from error

    def tuned(self, value: float | None) -> Method:
        """Return the method with the strength that it tunes set; None leaves it."""
        if value is None:
            return self
        assert self.tunes is not None
        of = self.tunes.of
        changed = (replace(i, strength=value) if isinstance(i, of) else i for i in self.ingredients)
        return replace(self, ingredients=tuple(changed))


#: One place to add another. Neighbours share an ingredient, so that a stack, which keeps this
#: order, works on slices.
METHODS: dict[str, Method] = {
    "none": Method("none"),
    "early-stopping": Method("early stopping", (EarlyStopping(),)),
    "marginal-likelihood": Method("marginal likelihood (KFAC-Laplace)", (LaplacePrior(),)),
    "decov": Method("DeCov", (DeCov(),), Space(DeCov, 1e-4, 10.0)),
    "weight-decay": Method("weight decay", (WeightDecay(),), Space(WeightDecay, 1e-5, 1.0)),
    "adareg+weight-decay": Method(
        "AdaReg + weight decay (authors' code)", (WeightDecay(), PaperPrior(rule="official"))
    ),
    "adareg-official": Method("AdaReg, authors' rule", (PaperPrior(rule="official"),)),
    "adareg-joint": Method("AdaReg, joint rule", (PaperPrior(rule="joint"),)),
    "adareg-conv": Method("AdaReg, convolutions", (PaperPrior(layers="conv"),)),
    "adareg-all": Method("AdaReg, all layers", (PaperPrior(layers="all"),)),
    "adareg-fc": Method("AdaReg, fully connected", (PaperPrior(layers="fc"),)),
    "adareg": Method("AdaReg", (PaperPrior(),), Space(PaperPrior, 1e-6, 1e-1)),
    "adareg+dropout": Method("AdaReg + dropout", (PaperPrior(), Dropout())),
    "dropout": Method("dropout", (Dropout(),), Space(Dropout, 0.05, 0.8, log=False)),
    "evidence+dropout": Method(
        "evidence + dropout",
        (EvidencePrior(), Dropout()),
        Space(Dropout, 0.05, 0.8, log=False),
        tuned_as="dropout",
    ),
    "evidence": Method("evidence", (EvidencePrior(),)),
    "batch-norm": Method("batch norm", (BatchNorm(),)),
    "adareg+batch-norm": Method("AdaReg + batch norm", (PaperPrior(), BatchNorm())),
}


def find(name: str) -> Method:
    """Return the method of that name, or raise ``ValueError``."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; there are: {', '.join(METHODS)}")
    return METHODS[name]
