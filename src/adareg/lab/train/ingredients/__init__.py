"""The ingredients of methods: a file for each, with its part in both trainers."""

from __future__ import annotations

from adareg.lab.train.ingredients.augmentation import Augmentation
from adareg.lab.train.ingredients.base import Ingredient, Scaled
from adareg.lab.train.ingredients.batch_norm import BatchNorm
from adareg.lab.train.ingredients.decov import DeCov
from adareg.lab.train.ingredients.dropout import Dropout
from adareg.lab.train.ingredients.early_stopping import EarlyStopping
from adareg.lab.train.ingredients.evidence_prior import EvidencePrior
from adareg.lab.train.ingredients.laplace_prior import LaplacePrior
from adareg.lab.train.ingredients.paper_prior import PaperPrior
from adareg.lab.train.ingredients.weight_decay import WeightDecay

__all__ = [
    "Augmentation",
    "BatchNorm",
    "DeCov",
    "Dropout",
    "EarlyStopping",
    "EvidencePrior",
    "Ingredient",
    "LaplacePrior",
    "PaperPrior",
    "Scaled",
    "WeightDecay",
]
