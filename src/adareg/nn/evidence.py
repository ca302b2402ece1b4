"""What ``rule="evidence"`` keeps beside the priors: the likelihood, and what it has learned."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset
from torch.utils.hooks import RemovableHandle

from adareg.core import evidence
from adareg.core.evidence import LIKELIHOODS, Curvature
from adareg.core.linalg import NonFiniteError
from adareg.core.metrics import correlation
from adareg.core.prior import MatrixNormal
from adareg.nn import curvature
from adareg.nn.curvature import Inputs
from adareg.nn.select import Layer

#: An attached regularizer updates after this many optimizer steps, and then whenever the number
#: of steps has grown so much.
FIRST, GROWTH = 50, 1.3


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
        self.noise = evidence.DISPERSION if likelihood == "classification" else 0.0
        self.found: dict[str, float] = {}
        self._most_noise = 0.0
        self._source: _Source | None = None
        self._curvatures: dict[str, Curvature] = {}

    @property
    def strength(self) -> float:
        """λ: what makes the penalty fit the training loss; 0 in regression until an update."""
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
        weights = {name: layer.matrix.detach() for name, layer in layers.items()}
        bad = [name for name, W in weights.items() if not W.isfinite().all()]
        if bad:
            raise NonFiniteError(f"{', '.join(bad)}: the weight has NaN or infinite entries")
        generator = torch.Generator().manual_seed(self.updates)
        inputs = _each(inputs, lambda x: x.to(next(iter(weights.values())).device))
        inputs, targets = _sample(inputs, targets, curvature.samples(layers), generator)
        seen = curvature.collect(
            model,
            layers,
            priors,
            inputs,
            lambda outputs: evidence.directions(outputs, self.likelihood, generator),
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
        self._remember(solved, seen)
        return {name: layer.prior for name, layer in solved.layers.items()}

    def _facts(self, outputs: Tensor, targets: Tensor | None) -> tuple[evidence.Outputs, Tensor]:
        """What the likelihood says, and the noise so far."""
        outputs = outputs.double()
        if self.likelihood == "classification":
            labels = None if targets is None else _as_labels(targets, outputs)
            facts = evidence.classify(outputs, labels)
            return facts, torch.tensor(self.noise, dtype=torch.float64, device=outputs.device)
        assert targets is not None
        wanted = _as_matrix(targets, outputs)
        facts = evidence.regress(outputs, wanted)
        self._most_noise = float((wanted - wanted.mean(0)).square().mean().clamp(min=1e-30))
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
            low, high = evidence.DISPERSIONS
        else:
            low, high = evidence.LEAST_NOISE * self._most_noise, self._most_noise
        return min(max(noise, low), high)

    def metrics(self) -> dict[str, float]:
        """What was found at the last update."""
        return {"noise": self.noise, "updates": float(self.updates), **self.found}

    def correlations(
        self, name: str, layer: Layer, prior: MatrixNormal, count: int = 400
    ) -> Correlations:
        """Correlations between the rows of a weight, over draws from its posterior.

        Of a softmax layer the mean over classes is taken off first: it has no effect.
        """
        if name not in self._curvatures:
            raise RuntimeError(f"{name}: no curvature is known yet; call update() first")
        weight = layer.matrix.detach()
        found = evidence.posterior(prior, self._curvatures[name], self._effective_samples)
        generator = torch.Generator().manual_seed(self.updates)
        weights = evidence.sample(weight, found, prior, count, generator)
        if evidence.ignores_common_row(self._curvatures[name]):
            weights = weights - weights.mean(-2, keepdim=True)
        drawn = correlation(weights)
        low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975]).to(drawn), dim=0)
        return Correlations(drawn.mean(0), low, high)

    @property
    def _effective_samples(self) -> float:
        return self.n_samples / (1.0 if self.likelihood == "classification" else self.noise)

    def observe(self, model: nn.Module, data: Any) -> list[RemovableHandle]:
        """Take what updates need from ``data``, or else from what the model is trained on."""
        if data is None and self.likelihood == "regression":
            raise ValueError(
                "likelihood='regression' learns the noise and so needs targets: "
                "attach(optimizer, data=(inputs, targets)), or a data loader"
            )
        self._source = _Given(data) if data is not None else _Observed(self.n_samples)
        return self._source.watch(model)

    def observed(self) -> tuple[Any, Tensor | None]:
        """Inputs, and targets if there are any."""
        if self._source is None:
            raise RuntimeError(
                "no training data are known: the rule has changed since attach(); call remove() "
                "on its handle and attach again"
            )
        return self._source.batch()

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
        vars(made).update({**state, "found": json.loads(state["found"])})
        return made


class _Given:
    """Training data that the caller hands over: ``(inputs, targets)``, or batches of such pairs."""

    def __init__(self, data: Any) -> None:
        if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
            raise TypeError(f"data: a {type(data).__name__} has no batches; give its DataLoader")
        if isinstance(data, Iterator):
            raise TypeError("data: an iterator can be read once only; give what it iterates over")
        if getattr(data, "persistent_workers", False):
            raise ValueError(
                "data: reading from a loader with persistent_workers=True would end the epoch that "
                "it is in; give another loader, or (inputs, targets)"
            )
        self._data = data

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        return []

    def batch(self) -> tuple[Any, Tensor | None]:
        if _is_pair(self._data):
            inputs, targets = self._data
            return inputs, targets
        own = getattr(self._data, "generator", None)
        before = None if own is None else own.get_state()
        with torch.random.fork_rng(devices=[]):  # a loader's iterator draws a seed
            pairs = list(_enough(self._data))
        if own is not None:
            own.set_state(before)
        if not pairs or not all(_is_pair(pair) for pair in pairs):
            raise ValueError("data: expected (inputs, targets), or batches of such pairs")
        pairs = [pair for pair in pairs if _form(pair[0]) == _form(pairs[-1][0])]
        return _joined([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])


class _Observed:
    """The latest batches that a classifier was trained on.

    Labels are read off the loss's gradient at the logits, ``p − y`` but for a positive factor:
    its one negative entry. They are known once a backward pass has been made.
    """

    def __init__(self, n_samples: int) -> None:
        self._most = min(n_samples, curvature.SAMPLES)
        self._recent: deque[tuple[Any, list[Tensor]]] = deque()
        self._is_copy = False

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the model, or a file, has no use for training data."""
        return {"_most": self._most, "_recent": deque(), "_is_copy": True}

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        return [model.register_forward_hook(self._see, with_kwargs=True)]

    def _see(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any
    ) -> None:
        logits = getattr(outputs, "logits", outputs)
        if self._is_copy or not model.training:
            return
        if not isinstance(logits, Tensor) or not logits.requires_grad:
            return
        labels: list[Tensor] = []
        inputs: Inputs = _each(args or kwargs, lambda x: x.detach().clone())
        if args and kwargs:
            raise ValueError(
                "the model is called with positional and keyword arguments; "
                "give attach() the training data: data=(inputs, targets)"
            )
        answer = logits.detach()
        logits.register_hook(lambda grad: labels.append(_labels_from(grad.detach(), answer)))
        self._recent.append((inputs, labels))
        while sum(curvature.size(x) for x, _ in list(self._recent)[1:]) >= self._most:
            self._recent.popleft()

    def batch(self) -> tuple[Any, Tensor | None]:
        known = [(inputs, labels[0]) for inputs, labels in self._recent if labels]
        if not known:
            raise RuntimeError(
                "no training batch was seen: the model was not called in training mode, was "
                "compiled before attach(), or returns no tensor; give attach() the training "
                "data: data=(inputs, targets)"
            )
        known = [(x, labels) for x, labels in known if _form(x) == _form(known[-1][0])]
        latest = slice(-self._most, None)
        inputs = curvature.take(_joined([inputs for inputs, _ in known]), latest)
        return inputs, torch.cat([labels for _, labels in known])[latest]


_Source = _Given | _Observed


def _labels_from(grad: Tensor, logits: Tensor) -> Tensor:
    """Labels; of a sample without a gradient, certain or ignored by the loss, what is predicted."""
    if grad.ndim == 1 or grad.shape[-1] == 1:
        grad, logits = grad.reshape(len(grad)), logits.reshape(len(grad))
        return torch.where(grad == 0, logits > 0, grad < 0).long()
    return torch.where((grad == 0).all(-1), logits.argmax(-1), grad.argmin(-1))


def _each(inputs: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """``f`` of every tensor of a batch."""
    if isinstance(inputs, Tensor):
        return f(inputs)
    if isinstance(inputs, Mapping):
        return {key: _each(value, f) for key, value in inputs.items()}
    return tuple(_each(x, f) for x in inputs) if isinstance(inputs, tuple) else inputs


def _form(inputs: Any) -> Any:
    """What batches must have in common to be joined: all shapes but for the number of samples."""
    shapes: list[torch.Size] = []

    def note(x: Tensor) -> Tensor:
        shapes.append(x.shape[1:])
        return x

    _each(inputs, note)
    return shapes


def _spread(precision: Any) -> float:
    """How far the shape is from a multiple of the identity: the spread of log eigenvalues."""
    return float(precision.eigenvalues().double().log().std(-1, unbiased=False).mean())


def _sample(
    inputs: Any, targets: Tensor | None, most: int, generator: torch.Generator
) -> tuple[Any, Tensor | None]:
    """At most so many samples, drawn without replacement."""
    inputs = inputs if isinstance(inputs, Tensor | tuple | Mapping) else _joined(_enough(inputs))
    m = curvature.size(inputs)
    if m == 0:
        raise ValueError("update() got no samples")
    if targets is not None and len(targets) != m:
        raise ValueError(f"{m} inputs and {len(targets)} targets: expected as many of each")
    if m <= most:
        return inputs, targets
    index = torch.randperm(m, generator=generator)[:most]
    return curvature.take(inputs, index), curvature.take(targets, index)


def _enough(batches: Iterable[Any]) -> Iterator[Any]:
    total = 0
    for batch in batches:
        yield batch
        total += curvature.size(batch)
        if total >= curvature.SAMPLES:
            return


def _joined(batches: Iterable[Any]) -> Any:
    """Batches as one."""
    each = list(batches)
    if not each:
        raise ValueError("update() got no batch of inputs")
    first = each[0]
    if isinstance(first, Tensor):
        return torch.cat(each)
    if isinstance(first, Mapping):
        return {key: _joined([batch[key] for batch in each]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(_joined(parts) for parts in zip(*each, strict=True))
    return first


def _is_pair(data: Any) -> bool:
    return (
        isinstance(data, tuple | list)
        and len(data) == 2
        and isinstance(data[1], Tensor)
        and isinstance(data[0], Tensor | tuple | Mapping)
    )


def _as_labels(targets: Tensor, outputs: Tensor) -> Tensor:
    labels = targets.reshape(len(targets), -1).squeeze(-1) if targets.ndim == 2 else targets
    K = max(2, outputs.shape[-1])
    whole = (labels >= 0) & (labels < K) & (labels == labels.long())
    if labels.ndim != 1 or not bool(whole.all()):
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} for {K} classes: expected one label "
            f"0…{K - 1} for each sample"
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
