"""The constants of the evidence rule; docs/evidence.md says why they are what they are."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the evidence rule does not learn."""

    shape: float = 0.9
    """How much of the shape a classifier learns: ρ in Σ ∝ (1 − ρ)·I + ρ·E."""

    count: float = 1 / 3
    """Of the kernel a classifier counts this share, so that it errs on the side of a weak prior."""

    dispersion: float = 0.3
    """The dispersion that a classifier starts from."""

    dispersions: tuple[float, float] = (0.3, 10.0)
    """The range of a classifier's dispersion."""

    least_noise: float = 1e-6
    """Noise is at least this share of the targets' variance, and at most all of it."""

    most_leverage: float = 0.98
    """A larger leverage is taken as this one: a sample keeps a say in the noise."""

    learned: float = 0.99
    """A network whose squared residuals are more than this share of those of the best constant
    prediction has learned nothing yet."""

    patience: int = 10
    """After this many updates that have met a network which has learned nothing, one warns."""

    step: float = 0.5
    """How far an update goes from the old scale or noise to the new, in logarithms."""

    most_dropout: float = 0.5
    """The largest rate of learned dropout. Beyond it noise can take over: it shrinks the weights,
    smaller weights make the loss flatter, and a flatter loss asks for more noise."""

    beside_dropout: float = 0.5
    """The share of the penalty that is left beside learned dropout, which is a penalty, too."""

    start: float = 0.01
    """The precision that training starts from, in a layer's unit."""

    scales: tuple[float, float] = (1e-4, 1e3)
    """The range that a layer's precision may take, in its unit."""

    rank: int = 1024
    """Directions that the curvature and the prior of a longer side of a weight have at most."""

    widest: int = 4096
    """Correlations are drawn between this many rows at most."""

    draws: int = 10
    """Up to this many outputs, all directions in output space are taken; of more, this many at
    random."""

    rows: int = 600
    """As many draws are enough that samples have so many in all, but at least three each."""

    shared: int = 3
    """Directions that all samples have in common, for the kernel: of more outputs, this many at
    random."""

    samples: int = 200
    """Samples that an update looks at."""

    sketch: int = 4
    """Directions for layers whose weight gradients are formed, as random sums of all of them."""

    entries: int = 2**26
    """Entries of the largest array of weight gradients, one for each sample and direction. Where
    more would be needed fewer samples are looked at, at least eight."""

    large_embedding: int = 2**16
    """Embeddings of more entries than this are read as if each sample had one mean token."""

    first: int = 50
    """An attached regularizer updates after this many optimizer steps for the first time."""

    growth: float = 1.3
    """It then updates whenever the number of steps has grown by this factor."""

    def draws_of(self, samples: int) -> int:
        """Return how many directions of its own each of so many samples has at most."""
        return min(self.draws, max(3, math.ceil(self.rows / max(1, samples))))


DEFAULTS = Constants()
