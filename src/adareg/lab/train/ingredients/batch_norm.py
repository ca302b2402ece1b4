"""Batch normalisation after every layer but the last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from adareg.lab.train.config import Config
from adareg.lab.train.ingredients.base import Ingredient
from adareg.lab.train.networks import Architecture


@dataclass(frozen=True)
class BatchNorm(Ingredient):
    """Another network, which has no biases before a normalisation."""

    apart: ClassVar[bool] = True

    def check(self, config: Config, architecture: Architecture) -> None:
        """Refuse batches of one sample."""
        if 1 in (config.n % config.batch, config.n, config.batch):
            raise ValueError(
                f"n={config.n}, batch={config.batch}: a batch of one sample has no variance for "
                f"batch normalisation; choose other sizes, or leave its methods out"
            )

    def network(self, config: Config) -> dict[str, Any]:
        """Let the network do it."""
        return {"batch_norm": True}
