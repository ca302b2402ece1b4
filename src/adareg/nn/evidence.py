"""What ``rule="evidence"`` keeps beside the priors: the likelihood, and what it has learned."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from adareg.core.evidence import constants as defaults
from adareg.core.evidence import update as rule
from adareg.core.evidence.constants import Constants
from adareg.core.evidence.curvature import Curvature, ignores_common_row
from adareg.core.evidence.likelihood import Likelihood, as_likelihood
from adareg.core.linalg import NonFiniteError, result_dtype
from adareg.core.metrics import correlation
from adareg.core.prior import MatrixNormal
from adareg.nn import curvature
from adareg.nn.batches import Inputs, each, joined, size, take
from adareg.nn.select import Layer
from adareg.nn.sources import Given, Observed, Source, enough

#: Draws from a posterior: at most and at least, in between as many as have so many entries; and how
#: many of them are made at once, to bound memory.
_MOST, _LEAST, _ENTRIES, _AT_ONCE = 400, 100, 2**27, 10


class Correlations(NamedTuple):
    """Correlations between the rows of a weight, with a 95 % interval from the posterior."""

    mean: Tensor  # (…, p, p)
    low: Tensor
    high: Tensor


class Evidence:
    """The state of the evidence rule.

    Args:
        n_samples: size of the training set.
        likelihood: ``"classification"``: outputs are the logits of K classes, or with one
            output of two, and the loss is the mean cross-entropy; ``"regression"``: outputs
            are means under Gaussian noise, and the loss is ``nn.MSELoss()``, the mean over
            samples *and* targets; or a :class:`adareg.Likelihood`.
        loss_scale: the training loss is this many times the one above: K/2 for half the sum
            over K targets, for example.
        constants: what is not learned.
    """

    def __init__(
        self,
        n_samples: int,
        likelihood: str | Likelihood = "classification",
        loss_scale: float = 1.0,
        constants: Constants | None = None,
    ) -> None:
        if not isinstance(loss_scale, int | float) or not 0 < loss_scale < math.inf:
            raise ValueError(f"loss_scale={loss_scale!r}: expected a positive number")
        self.n_samples = int(n_samples)
        self.likelihood = as_likelihood(likelihood)
        self.loss_scale = float(loss_scale)
        self.updates = 0
        self.constants = constants or defaults.DEFAULTS
        self.next_step = self.constants.first
        self.outputs = 1
        self.noise: Tensor | None = None
        if not self.likelihood.needs_targets:
            self.noise = self.likelihood.initial_noise(None, self.constants)
        self.waiting = True
        self.found: dict[str, float] = {}
        self._source: Source | None = None
        self._curvatures: dict[str, Curvature] = {}

    def __str__(self) -> str:
        return f"n_samples={self.n_samples}, likelihood={self.likelihood.name!r}"

    @property
    def strength(self) -> float:
        """λ: what makes the penalty fit the training loss.

        0 while it is waiting: until an update has met a network that has learned something.
        Gradients of the loss can be so small before, in a deep network as torch starts it, that
        Adam would follow any penalty, however weak.
        """
        if self.waiting or self.noise is None:
            return 0.0
        per_nat = float(self.likelihood.loss_per_nat(self.noise, self.outputs))
        return self.loss_scale * per_nat / (2 * self.n_samples)

    def update(
        self,
        model: nn.Module,
        layers: Mapping[str, Layer],
        priors: Mapping[str, MatrixNormal],
        inputs: Any,
        targets: Tensor | None,
    ) -> dict[str, MatrixNormal]:
        """The new priors, from some of the samples given."""
        if targets is None and self.likelihood.needs_targets:
            raise ValueError(
                f"likelihood={self.likelihood.name!r} learns the noise: give update() the targets"
            )
        layers = _trained(layers)
        weights = {name: layer.matrix.detach() for name, layer in layers.items()}
        bad = [name for name, W in weights.items() if not W.isfinite().all()]
        if bad:
            raise NonFiniteError(f"{', '.join(bad)}: the weight has NaN or infinite entries")
        generator = torch.Generator("cpu").manual_seed(self.updates)
        device = next(iter(weights.values())).device

        def most(given: Inputs) -> int:
            one = each(take(given, slice(0, 1)), lambda x: x.to(device))
            return min(curvature.samples(model, layers, one, self.constants), self.n_samples)

        inputs, targets = _sample(inputs, targets, most, generator, self.constants.samples)
        inputs = each(inputs, lambda x: x.to(device))
        likelihood, known = self.likelihood, dict[str, Any]()

        def directions(outputs: Tensor) -> tuple[Tensor, Tensor]:
            checked = None if targets is None else likelihood.check_targets(targets, outputs)
            noise = self.noise
            if noise is None:
                noise = likelihood.initial_noise(checked, self.constants)
            noise, draws = noise.to(outputs.device), self.constants.draws
            known.update(targets=checked, noise=noise)
            own = likelihood.directions(outputs, noise, draws, generator)
            return own, likelihood.shared_directions(outputs, noise, draws, generator)

        seen = curvature.collect(
            model, layers, priors, inputs, directions, generator, self.constants
        )
        solved = rule.update_priors(
            weights,
            priors,
            seen.curvatures,
            seen.kernel,
            seen.outputs,
            known["targets"],
            known["noise"],
            likelihood,
            self.n_samples,
            seen.normalised,
            self.constants,
        )
        if self.waiting:
            learned = self.constants.learned
            self.waiting = not likelihood.has_learned(seen.outputs, known["targets"], learned)
        self._remember(solved, seen)
        return {**priors, **{name: layer.prior for name, layer in solved.layers.items()}}

    def _remember(self, solved: rule.Update, seen: curvature.Collected) -> None:
        self.outputs = seen.outputs.shape[-1]
        self.noise = solved.noise.cpu()
        self.updates += 1
        self._curvatures = seen.curvatures
        gamma = sum(float(layer.gamma.sum()) for layer in solved.layers.values())
        self.found = {"gamma": gamma, "leverage": float(solved.leverage)}
        if math.isfinite(value := float(solved.log_evidence)):
            self.found["log_evidence"] = value
        for name, layer in solved.layers.items():
            prior = layer.prior
            self.found[f"{name}/gamma"] = float(layer.gamma.sum())
            self.found[f"{name}/scale"] = float(rule.scale(prior).log().mean().exp())
            self.found[f"{name}/shape_row"] = _spread(prior.row)
            self.found[f"{name}/shape_col"] = _spread(prior.col)
            self.found[f"{name}/log_evidence"] = float(layer.log_evidence.sum())

    def metrics(self) -> dict[str, float]:
        """What was found at the last update."""
        state = {
            "updates": float(self.updates),
            "waiting": float(self.waiting),
        }
        if self.noise is not None:
            state["noise"] = self.likelihood.mean_noise(self.noise)
        return {**state, **self.found}

    def correlations(self, name: str, layer: Layer, prior: MatrixNormal) -> Correlations:
        """Correlations between the rows of a weight, over draws from its posterior.

        Of a softmax layer the mean over classes is taken off first: it has no effect.
        """
        if name not in self._curvatures:
            raise RuntimeError(f"{name}: no curvature is known yet; call update() first")
        weight, curvature = layer.matrix.detach(), self._curvatures[name]
        rows = weight.shape[-2]
        if rows > self.constants.widest:
            raise ValueError(
                f"{name} has {rows:,} rows: correlations are drawn between at most "
                f"{self.constants.widest:,}"
            )
        found = rule.posterior(prior, curvature, self.n_samples)
        generator = torch.Generator("cpu").manual_seed(self.updates)
        count = min(_MOST, max(_LEAST, _ENTRIES // weight.numel()))
        drawn = []
        for _ in range(0, count, _AT_ONCE):
            weights = rule.sample(weight, found, prior, _AT_ONCE, generator)
            if ignores_common_row(curvature):
                weights = weights - weights.mean(-2, keepdim=True)
            drawn.append(correlation(weights).to(result_dtype(weight)))
        return Correlations(*_summary(torch.cat(drawn)))

    def observe(self, model: nn.Module, data: Any) -> list[RemovableHandle]:
        """Take what updates need from ``data``, or else from what the model is trained on."""
        if data is not None:
            self._source = Given(data, self.constants.samples)
        else:
            most = min(self.n_samples, self.constants.samples)
            self._source = Observed(most, self.likelihood)
        return self._source.watch(model)

    def observed(self) -> tuple[Any, Tensor | None]:
        """Inputs, and targets if there are any."""
        if self._source is None:
            raise RuntimeError(
                "rule='evidence' needs training inputs: call update(inputs), or attach() first, "
                "anew if the rule has changed since"
            )
        return self._source.batch()

    def tell(self) -> Any:
        """What the other processes of a training must know after an update."""
        seen = {name: Curvature(*(F.cpu() for F in x)) for name, x in self._curvatures.items()}
        return self.state_dict(), seen

    def hear(self, told: Any, device: torch.device) -> None:
        """Know what another process was told by its data."""
        state, seen = told
        self._restore(state)
        self._curvatures = {n: Curvature(*(F.to(device) for F in x)) for n, x in seen.items()}

    def take_over(self, other: Evidence) -> None:
        """Go on with the data that another one has been attached to."""
        self._source = other._source

    def is_due(self, step: int, update_every: int | None) -> bool:
        """Whether to update after this step."""
        if update_every is not None:
            return step % update_every == 0
        if step < self.next_step:
            return False
        self.next_step = math.ceil(step * self.constants.growth)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Plain values under fixed keys; curvature is not among them, the next update finds it."""
        state = {key: value for key, value in vars(self).items() if not key.startswith("_")}
        del state["constants"]
        noise = None if self.noise is None else self.noise.tolist()
        return {
            **state,
            "likelihood": self.likelihood.name,
            "noise": json.dumps(noise),
            "found": json.dumps(self.found),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Evidence:
        """What :meth:`state_dict` returned, as an object again."""
        made = cls(state["n_samples"], state["likelihood"], state["loss_scale"])
        if state.keys() != made.state_dict().keys():
            raise ValueError("this is not the state of an evidence rule")
        made._restore(state)
        return made

    def _restore(self, state: Mapping[str, Any]) -> None:
        noise = json.loads(state["noise"])
        read = {
            "likelihood": self.likelihood,
            "noise": None if noise is None else torch.tensor(noise, dtype=torch.float64),
            "found": json.loads(state["found"]),
        }
        vars(self).update({**state, **read})


def _summary(drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (draws, …)
    """Mean, 2.5 % and 97.5 % quantile, of so many at once as any version of torch sorts."""
    at = drawn.new_tensor([0.025, 0.975])
    flat = drawn.flatten(1)
    several = [torch.quantile(part, at, dim=0) for part in flat.split(2**24 // len(flat), 1)]
    low, high = torch.cat(several, -1).unflatten(-1, drawn.shape[1:])
    return drawn.mean(0), low, high


def _trained(layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """Without those that were frozen later: their weights are given, and their priors stay."""
    trained = {n: x for n, x in layers.items() if any(p.requires_grad for p in x.parameters)}
    if not trained:
        raise ValueError(f"{', '.join(layers)}: the weights are frozen (requires_grad=False)")
    return trained


def _spread(precision: Any) -> float:
    """How far the shape is from a multiple of the identity: the spread of log eigenvalues."""
    return float(precision.eigenvalues().double().log().std(-1, unbiased=False).mean())


def _sample(
    inputs: Any,
    targets: Tensor | None,
    most: Callable[[Inputs], int],
    generator: torch.Generator,
    enough_samples: int,
) -> tuple[Any, Tensor | None]:
    """As many samples as there should be at most, drawn without replacement."""
    if not isinstance(inputs, Tensor | tuple | Mapping):  # targets are those of all batches
        inputs = joined(enough(inputs, enough_samples) if targets is None else inputs)
    if not isinstance(targets, Tensor | None):
        raise TypeError(f"targets: expected a tensor, got {type(targets).__name__}")
    m = size(inputs)
    if m == 0:
        raise ValueError("update() got no samples")
    if targets is not None and len(targets) != m:
        raise ValueError(f"{m} inputs and {len(targets)} targets: expected as many of each")
    few = most(inputs)
    if m <= few:
        return inputs, targets
    index = torch.randperm(m, generator=generator, device="cpu")[:few]
    return take(inputs, index), take(targets, index)
