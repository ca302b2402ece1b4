"""What ``rule="evidence"`` keeps beside the priors: the likelihood, and what it has learned."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from adareg.core import evidence, jacobian, observation
from adareg.core.jacobian import Curvature
from adareg.core.linalg import NonFiniteError, result_dtype
from adareg.core.metrics import correlation
from adareg.core.observation import LIKELIHOODS
from adareg.core.prior import MatrixNormal
from adareg.nn import curvature
from adareg.nn.batches import Inputs, each, joined, size, take
from adareg.nn.select import Layer
from adareg.nn.sources import Given, Observed, Source, enough

#: An attached regularizer updates after this many optimizer steps, and then whenever the number
#: of steps has grown so much.
FIRST, GROWTH = 50, 1.3


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
            samples *and* targets.
        loss_scale: the training loss is this many times the one above: K/2 for half the sum
            over K targets, for example.
    """

    def __init__(
        self, n_samples: int, likelihood: str = "classification", loss_scale: float = 1.0
    ) -> None:
        if likelihood not in LIKELIHOODS:
            accepted = ", ".join(map(repr, LIKELIHOODS))
            raise ValueError(f"likelihood={likelihood!r}: expected one of {accepted}")
        if not isinstance(loss_scale, int | float) or not 0 < loss_scale < math.inf:
            raise ValueError(f"loss_scale={loss_scale!r}: expected a positive number")
        self.n_samples = int(n_samples)
        self.likelihood = likelihood
        self.loss_scale = float(loss_scale)
        self.updates = 0
        self.next_step = FIRST
        self.outputs = 1
        self.noise = observation.DISPERSION if likelihood == "classification" else 0.0
        self.waiting = True
        self.found: dict[str, float] = {}
        self._most_noise = 0.0
        self._source: Source | None = None
        self._curvatures: dict[str, Curvature] = {}

    def __str__(self) -> str:
        return f"n_samples={self.n_samples}, likelihood={self.likelihood!r}"

    @property
    def strength(self) -> float:
        """λ: what makes the penalty fit the training loss.

        0 while it is waiting: until an update has met a network that has learned something.
        Gradients of the loss can be so small before, in a deep network as torch starts it, that
        Adam would follow any penalty, however weak.
        """
        if self.waiting:
            return 0.0
        numbers = 2 if self.likelihood == "classification" else self.outputs
        return self.loss_scale * self.noise / (numbers * self.n_samples)

    def update(
        self,
        model: nn.Module,
        layers: Mapping[str, Layer],
        priors: Mapping[str, MatrixNormal],
        inputs: Any,
        targets: Tensor | None,
    ) -> dict[str, MatrixNormal]:
        """The new priors, from some of the samples given."""
        if targets is None and self.likelihood == "regression":
            raise ValueError("likelihood='regression' learns the noise: give update() the targets")
        layers = _trained(layers)
        weights = {name: layer.matrix.detach() for name, layer in layers.items()}
        bad = [name for name, W in weights.items() if not W.isfinite().all()]
        if bad:
            raise NonFiniteError(f"{', '.join(bad)}: the weight has NaN or infinite entries")
        generator = torch.Generator("cpu").manual_seed(self.updates)
        device = next(iter(weights.values())).device

        def most(given: Inputs) -> int:
            one = each(take(given, slice(0, 1)), lambda x: x.to(device))
            return min(curvature.samples(model, layers, one), self.n_samples)

        inputs, targets = _sample(inputs, targets, most, generator)
        inputs = each(inputs, lambda x: x.to(device))
        seen = curvature.collect(
            model,
            layers,
            priors,
            inputs,
            lambda outputs: jacobian.directions(outputs, self.likelihood, generator),
            generator,
        )
        facts, noise = self._facts(seen.outputs, targets)
        solved = evidence.update(
            weights,
            priors,
            seen.curvatures,
            seen.kernel,
            facts,
            self.n_samples,
            noise,
            self.likelihood,
            seen.normalised,
        )
        if not math.isfinite(float(solved.noise)):
            raise NonFiniteError("the noise that was found is not finite")
        if self.waiting:
            self.waiting = not bool(observation.has_learned(facts))
        self._remember(solved, seen)
        return {**priors, **{name: layer.prior for name, layer in solved.layers.items()}}

    def _facts(self, outputs: Tensor, targets: Tensor | None) -> tuple[observation.Outputs, Tensor]:
        """What the likelihood says, and the noise so far."""
        outputs = outputs.double()
        if self.likelihood == "classification":
            labels = None if targets is None else _as_labels(targets, outputs)
            facts = observation.classify(outputs, labels)
            return facts, torch.tensor(self.noise, dtype=torch.float64, device=outputs.device)
        assert targets is not None
        wanted = _as_matrix(targets, outputs)
        facts = observation.regress(outputs, wanted)
        assert facts.unlearned is not None
        self._most_noise = max(float(facts.unlearned) / wanted.shape[-1], 1e-30)
        noise = self.noise or self._most_noise
        return facts, torch.tensor(noise, dtype=torch.float64, device=outputs.device)

    def _remember(self, solved: evidence.Update, seen: curvature.Collected) -> None:
        self.outputs = seen.outputs.shape[-1]
        self.noise = self._bounded(float(solved.noise))
        self.updates += 1
        self._curvatures = seen.curvatures
        gamma = sum(float(layer.gamma.sum()) for layer in solved.layers.values())
        self.found = {"gamma": gamma, "leverage": float(solved.leverage)}
        if math.isfinite(value := float(solved.log_evidence)):
            self.found["log_evidence"] = value
        for name, layer in solved.layers.items():
            prior = layer.prior
            self.found[f"{name}/gamma"] = float(layer.gamma.sum())
            self.found[f"{name}/scale"] = float(evidence.scale(prior).log().mean().exp())
            self.found[f"{name}/shape_row"] = _spread(prior.row)
            self.found[f"{name}/shape_col"] = _spread(prior.col)
            self.found[f"{name}/log_evidence"] = float(layer.log_evidence.sum())

    def _bounded(self, noise: float) -> float:
        if self.likelihood == "classification":
            low, high = observation.DISPERSIONS
        else:
            low, high = observation.LEAST_NOISE * self._most_noise, self._most_noise
        return min(max(noise, low), high)

    def metrics(self) -> dict[str, float]:
        """What was found at the last update."""
        state = {
            "noise": self.noise,
            "updates": float(self.updates),
            "waiting": float(self.waiting),
        }
        return {**state, **self.found}

    def correlations(self, name: str, layer: Layer, prior: MatrixNormal) -> Correlations:
        """Correlations between the rows of a weight, over draws from its posterior.

        Of a softmax layer the mean over classes is taken off first: it has no effect.
        """
        if name not in self._curvatures:
            raise RuntimeError(f"{name}: no curvature is known yet; call update() first")
        weight, curvature = layer.matrix.detach(), self._curvatures[name]
        rows = weight.shape[-2]
        if rows > jacobian.WIDEST:
            raise ValueError(
                f"{name} has {rows:,} rows: correlations are drawn between at most "
                f"{jacobian.WIDEST:,}"
            )
        found = evidence.posterior(prior, curvature, self._effective_samples)
        generator = torch.Generator("cpu").manual_seed(self.updates)
        count = min(_MOST, max(_LEAST, _ENTRIES // weight.numel()))
        drawn = []
        for _ in range(0, count, _AT_ONCE):
            weights = evidence.sample(weight, found, prior, _AT_ONCE, generator)
            if jacobian.ignores_common_row(curvature):
                weights = weights - weights.mean(-2, keepdim=True)
            drawn.append(correlation(weights).to(result_dtype(weight)))
        return Correlations(*_summary(torch.cat(drawn)))

    @property
    def _effective_samples(self) -> float:
        return self.n_samples / (1.0 if self.likelihood == "classification" else self.noise)

    def observe(self, model: nn.Module, data: Any) -> list[RemovableHandle]:
        """Take what updates need from ``data``, or else from what the model is trained on."""
        if data is not None:
            self._source = Given(data)
        else:
            self._source = Observed(self.n_samples, needs_targets=self.likelihood == "regression")
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
        self.next_step = math.ceil(step * GROWTH)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Plain values under fixed keys; curvature is not among them, the next update finds it."""
        state = {key: value for key, value in vars(self).items() if not key.startswith("_")}
        return {**state, "found": json.dumps(self.found)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Evidence:
        """What :meth:`state_dict` returned, as an object again."""
        made = cls(state["n_samples"], state["likelihood"], state["loss_scale"])
        if state.keys() != made.state_dict().keys():
            raise ValueError("this is not the state of an evidence rule")
        made._restore(state)
        return made

    def _restore(self, state: Mapping[str, Any]) -> None:
        vars(self).update({**state, "found": json.loads(state["found"])})


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
    inputs: Any, targets: Tensor | None, most: Callable[[Inputs], int], generator: torch.Generator
) -> tuple[Any, Tensor | None]:
    """As many samples as there should be at most, drawn without replacement."""
    if not isinstance(inputs, Tensor | tuple | Mapping):  # targets are those of all batches
        inputs = joined(enough(inputs) if targets is None else inputs)
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


def _as_labels(targets: Tensor, outputs: Tensor) -> Tensor:
    labels = targets.reshape(len(targets), -1).squeeze(-1) if targets.ndim == 2 else targets
    K = max(2, outputs.shape[-1])
    if labels.ndim != 1:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} for {K} classes: expected one label "
            f"0…{K - 1} for each sample"
        )
    known = (labels >= 0) & (labels < K) & (labels == labels.long())
    if not bool(known.all()):
        raise ValueError(
            f"targets: the label {labels[~known][0].item()} is none of {K} classes; expected "
            f"integers 0…{K - 1}"
        )
    return labels.to(outputs.device).long()


def _as_matrix(targets: Tensor, outputs: Tensor) -> Tensor:
    made = targets.to(outputs).reshape(len(targets), -1)
    if made.shape != outputs.shape:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} for outputs of {tuple(outputs.shape)}"
        )
    if not made.isfinite().all():
        raise NonFiniteError("the targets have NaN or infinite entries")
    return made
