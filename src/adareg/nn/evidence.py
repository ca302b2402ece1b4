"""What ``rule="evidence"`` needs beside the priors: the likelihood, and what it has learned."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from adareg.core import evidence
from adareg.core.prior import MatrixNormal
from adareg.nn import curvature
from adareg.nn.select import Layer

#: Updates come after this many optimizer steps, and then whenever the steps have grown so much.
FIRST, GROWTH = 10, 4 / 3

LIKELIHOODS = ("classification", "regression")


class Evidence:
    """The state of the evidence rule.

    Args:
        n_samples: size of the training set.
        likelihood: ``"classification"``, outputs are logits: of K classes, or with one output
            of two; ``"regression"``, outputs are means with Gaussian noise.
        loss_scale: the training loss is this many times the mean cross-entropy, or
            ``nn.MSELoss()``, the mean over samples *and* targets.
    """

    def __init__(
        self, n_samples: int, likelihood: str = "classification", loss_scale: float = 1.0
    ) -> None:
        if likelihood not in LIKELIHOODS:
            accepted = ", ".join(map(repr, LIKELIHOODS))
            raise ValueError(f"likelihood={likelihood!r}: expected one of {accepted}")
        if not isinstance(loss_scale, Real) or not 0 < loss_scale < math.inf:
            raise ValueError(f"loss_scale={loss_scale!r}: expected a positive number")
        self.n_samples = int(n_samples)
        self.likelihood = likelihood
        self.loss_scale = float(loss_scale)
        self.updates = 0
        self._next = FIRST
        self._data: Any = None
        self._recent: deque[Any] = deque()
        self.noise: float | None = None  # variance, in regression
        self.outputs = 1
        self.found: dict[str, dict[str, float]] = {}
        self.log_evidence: float | None = None

    @property
    def strength(self) -> float:
        """λ: what the penalty is multiplied with, so that it matches the training loss."""
        if self.likelihood == "classification":
            return self.loss_scale / (2 * self.n_samples)
        noise = self.noise or 0.0  # nothing is known before the first update
        return self.loss_scale * noise / (self.n_samples * self.outputs)

    def observe(self, model: nn.Module, data: Any) -> list[RemovableHandle]:
        """Take what updates need from ``data``, or else from what the model is trained on."""
        self._data, self._recent = data, deque[Any]()
        if data is not None:
            return []
        if self.likelihood == "regression":
            raise ValueError(
                "likelihood='regression' learns the noise and so needs targets: "
                "attach(optimizer, data=(inputs, targets)), or a data loader"
            )
        return [model.register_forward_pre_hook(self._remember, with_kwargs=True)]

    def _remember(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not model.training or not torch.is_grad_enabled():
            return
        self._recent.append(kwargs if not args else args)
        while sum(map(curvature.size, self._recent)) - curvature.size(self._recent[0]) >= (
            curvature.ROWS
        ):
            self._recent.popleft()

    def observed(self) -> tuple[Any, Tensor | None]:
        """Inputs, and targets if there are any."""
        if self._data is None:
            return list(self._recent), None
        if isinstance(self._data, tuple | list) and isinstance(self._data[-1], Tensor):
            inputs, targets = self._data
            return inputs, targets
        pairs = list(_enough(self._data))
        return [pair[0] for pair in pairs], torch.cat([pair[1] for pair in pairs])

    def is_due(self, step: int, update_every: int | None) -> bool:
        """Whether to update after this step: at steps that grow by a third each time."""
        if update_every is not None:
            return step % update_every == 0
        if step < self._next:
            return False
        self._next = max(step + FIRST, math.ceil(step * GROWTH))
        return True

    def update(
        self,
        model: nn.Module,
        layers: Mapping[str, Layer],
        priors: Mapping[str, MatrixNormal],
        inputs: Any,
        targets: Tensor | None,
    ) -> dict[str, MatrixNormal]:
        """The new priors, from curvature at some of the samples given."""
        if targets is None and self.likelihood == "regression":
            raise ValueError("likelihood='regression' learns the noise: give update() the targets")
        generator = torch.Generator().manual_seed(self.updates)
        inputs, targets = _sample(inputs, targets, generator)
        directions = self._directions(targets, generator)
        found, outputs = curvature.collect(model, layers, inputs, directions)
        self.outputs = outputs.shape[-1]
        weights = {name: layer.matrix.detach() for name, layer in layers.items()}
        solved = evidence.update(weights, priors, found, self.n_samples, self._numbers)
        gamma = sum(float(one.gamma.sum()) for one in solved.values())
        if targets is not None:
            self._learn_noise(outputs, targets, gamma)
        self.updates += 1
        self.found = {
            name: {
                "gamma": float(one.gamma.sum()),
                "scale": float(evidence.scale(one.prior).log().mean().exp()),
            }
            for name, one in solved.items()
        }
        return {name: one.prior for name, one in solved.items()}

    @property
    def _numbers(self) -> int:
        K = self.outputs
        return self.n_samples * (K - 1 if self.likelihood == "classification" and K > 1 else K)

    def _directions(self, targets: Tensor | None, generator: torch.Generator) -> Any:
        """Directions v in output space whose second moment is the likelihood's curvature."""

        def draw(outputs: Tensor) -> Tensor:
            m, K = outputs.shape
            draws = max(1, curvature.ROWS // m)
            if self.likelihood == "regression":
                assert targets is not None
                if self.noise is None:
                    self.noise = float(targets.double().var(0).mean().clamp(min=1e-12))
                return _gaussian(outputs, self.noise, min(draws, K), generator)
            return _categorical(outputs, draws, generator)

        return draw

    def _learn_noise(self, outputs: Tensor, targets: Tensor, gamma: float) -> None:
        if self.likelihood == "classification":
            return
        rss = (outputs.double() - _as_matrix(targets, outputs)).square().mean()
        self.noise = float(rss) / max(1 - gamma / self._numbers, 0.6)

    def metrics(self) -> dict[str, float]:
        """What was found at the last update."""
        values = {f"{name}/{key}": x for name, one in self.found.items() for key, x in one.items()}
        return values if self.noise is None else {"noise": self.noise, **values}

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {k: v for k, v in vars(self).items() if k not in ("_data", "_recent")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Evidence:
        """What :meth:`state_dict` returned, as an object again."""
        made = cls(state["n_samples"], state["likelihood"], state["loss_scale"])
        if state.keys() != made.state_dict().keys():
            raise ValueError("this is not the state of an evidence rule")
        vars(made).update(state)
        return made


def _sample(
    inputs: Any, targets: Tensor | None, generator: torch.Generator
) -> tuple[Any, Tensor | None]:
    """At most as many samples as there are rows, drawn without replacement."""
    inputs = _one_batch(inputs)
    m = curvature.size(inputs)
    if targets is not None and len(targets) != m:
        raise ValueError(f"{m} inputs and {len(targets)} targets: expected as many of each")
    if m <= curvature.ROWS:
        return inputs, targets
    index = torch.randperm(m, generator=generator)[: curvature.ROWS]
    return curvature.take(inputs, index), curvature.take(targets, index)


def _one_batch(inputs: Any) -> Any:
    if isinstance(inputs, Tensor | tuple | Mapping):
        return inputs
    batches = list(_enough(inputs))
    if not batches:
        raise ValueError("update() got no batch of inputs")
    return _concatenated(batches)


def _enough(batches: Iterable[Any]) -> Iterator[Any]:
    total = 0
    for batch in batches:
        yield batch
        total += curvature.size(batch)
        if total >= curvature.ROWS:
            return


def _concatenated(batches: list[Any]) -> Any:
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(batches)
    if isinstance(first, Mapping):
        return {key: _concatenated([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple):
        return tuple(_concatenated(list(parts)) for parts in zip(*batches, strict=True))
    return first


def _as_matrix(targets: Tensor, outputs: Tensor) -> Tensor:
    made = targets.double().reshape(len(targets), -1)
    if made.shape != outputs.shape:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} for outputs of {tuple(outputs.shape)}"
        )
    return made


def _categorical(logits: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Gradients of the log-likelihood at labels that the model itself predicts."""
    m, K = logits.shape
    logits = logits.double()
    if K == 1:
        p = logits.sigmoid()
        return (p * (1 - p)).sqrt().unsqueeze(0)
    p = logits.softmax(-1)
    eye = torch.eye(K, dtype=p.dtype, device=p.device)
    if draws >= K:  # every label, weighted by its probability
        return p.mT.sqrt().unsqueeze(-1) * (eye.unsqueeze(1) - p)
    labels = torch.multinomial(p.cpu(), draws, replacement=True, generator=generator)
    return (eye[labels.mT.to(p.device)] - p) / math.sqrt(draws)


def _gaussian(outputs: Tensor, noise: float, draws: int, generator: torch.Generator) -> Tensor:
    m, K = outputs.shape
    if draws >= K:
        eye = torch.eye(K, dtype=torch.float64, device=outputs.device)
        return (eye / math.sqrt(noise)).unsqueeze(1).expand(K, m, K)
    signs = torch.randint(2, (draws, m, K), generator=generator) * 2.0 - 1
    return signs.to(outputs.device, torch.float64) / math.sqrt(draws * noise)
