"""Sources of training data for an attached regularizer: the caller, or the training itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset
from torch.utils.hooks import RemovableHandle

from adareg.core.evidence.likelihood import Likelihood
from adareg.nn.evidence.batches import Inputs, each, enough, form, joined, size, take
from adareg.nn.evidence.tracing import logits as logits_of


class Given:
    """Training data that the caller hands over: ``(inputs, targets)``, or batches of such pairs."""

    def __init__(self, data: Any, samples: int) -> None:
        if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
            raise TypeError(f"data: a {type(data).__name__} has no batches; give its DataLoader")
        if isinstance(data, Iterator):
            raise TypeError("data: an iterator can be read once only; give what it iterates over")
        if getattr(data, "persistent_workers", False):
            raise ValueError(
                "data: reading from a loader with persistent_workers=True would end the epoch that "
                "it is in; give another loader, or (inputs, targets)"
            )
        self._data, self._samples = data, samples

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        """Return no hooks: nothing needs to be watched."""
        return []

    def batch(self) -> tuple[Any, Tensor | None]:
        """Return inputs and targets for an update."""
        if _is_pair(self._data):
            inputs, targets = self._data
            return inputs, targets
        with _own_draws(self._data):
            pairs = list(enough(self._data, self._samples))
        pairs = [_with_arguments(pair) for pair in pairs]
        if not pairs or not all(_is_pair(pair) for pair in pairs):
            raise ValueError("data: expected (inputs, targets), or batches of such pairs")
        pairs = [pair for pair in pairs if form(pair[0]) == form(pairs[-1][0])]
        return joined([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])


@contextmanager
def _own_draws(data: Any) -> Iterator[None]:
    """Have a loader shuffle with a copy of its generators, or with new ones for torch's global one.

    What the training draws does not depend on the updates then, and nothing global is rewound.
    """
    sampler = getattr(data, "sampler", None)
    inner = getattr(getattr(data, "batch_sampler", None), "sampler", None)
    holders: list[Any] = [x for x in (data, sampler, inner) if hasattr(x, "generator")]
    before = [(x, x.generator) for x in {id(x): x for x in holders}.values()]
    try:
        for holder, generator in before:
            holder.generator = torch.Generator()
            if generator is not None:
                holder.generator.set_state(generator.get_state())
        yield
    finally:
        for holder, generator in before:
            holder.generator = generator


class _Seen(NamedTuple):
    """A batch that the model was trained on."""

    inputs: Any
    size: int
    targets: Callable[[], Tensor | None]


class Recent:
    """The latest batches that a model was trained on.

    Targets are the model's argument ``labels`` if it has one. Else they are read off the loss's
    gradient at the outputs, if the likelihood can; they are known once a backward pass has been
    made.

    Args:
        most: how many samples are remembered.
        likelihood: reads targets off a gradient.
        sign: −1 where the loss is maximized.
        is_wanted: tells if there may be an update after so many batches; others are passed over
            while there are enough, which is what most of a training is.
    """

    def __init__(
        self,
        most: int,
        likelihood: Likelihood,
        sign: int = 1,
        is_wanted: Callable[[int], bool] | None = None,
    ) -> None:
        self._most, self._likelihood, self._sign = most, likelihood, sign
        self._is_wanted = is_wanted
        self._name = "the model"
        self._recent: deque[_Seen] = deque()
        self._is_copy = False

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the model, or a file, has no use for training data."""
        return {**vars(self), "_recent": deque(), "_is_copy": True, "_is_wanted": None}

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        """Remember what the model is called with from now on."""
        self._name = type(model).__name__
        return [model.register_forward_hook(self._see, with_kwargs=True)]

    def _see(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any
    ) -> None:
        logits = logits_of(outputs)
        if self._is_copy or not model.training:
            return
        if not isinstance(logits, Tensor) or not logits.requires_grad or not logits.ndim:
            return
        if not self._needs(len(logits)):
            return
        if args and kwargs:
            raise ValueError(
                "the model is called with positional and keyword arguments; "
                "give the training data: data=(inputs, targets)"
            )
        latest = take(args or kwargs, slice(-self._most, None))
        inputs: Inputs = each(latest, lambda x: x.detach().clone())
        self._recent.append(_Seen(inputs, size(inputs), self._targets(inputs, logits)))
        while sum(seen.size for seen in self._recent) - self._recent[0].size >= self._most:
            self._recent.popleft()

    def _needs(self, samples: int) -> bool:
        """Return if a batch of so many samples is to be remembered."""
        if self._is_wanted is None or sum(seen.size for seen in self._recent) < self._most:
            return True
        return self._is_wanted(-(-self._most // max(1, samples)))

    def _targets(self, inputs: Inputs, logits: Tensor) -> Callable[[], Tensor | None]:
        """Return what returns the targets, None before the backward pass that they are read off."""
        answer, likelihood = logits.detach()[-self._most :].clone(), self._likelihood
        given = inputs.get("labels") if isinstance(inputs, Mapping) else None
        if isinstance(given, Tensor):
            targets = likelihood.fill_gaps(given, answer)
            return lambda: targets
        if likelihood.needs_targets:
            raise ValueError(
                f"likelihood={likelihood.name!r} learns the noise and so needs targets: give "
                "data=(inputs, targets), or a data loader; or call the model with labels=…"
            )
        gradients: list[Tensor] = []
        logits.register_hook(lambda gradient: gradients.append(gradient.detach().clone()))

        def read() -> Tensor | None:
            if not gradients:
                return None
            found = self._sign * gradients[0][-self._most :]
            return likelihood.read_targets(found, answer)

        return read

    def batch(self) -> tuple[Any, Tensor | None]:
        """Return inputs and targets for an update."""
        found = [(seen.inputs, seen.targets()) for seen in self._recent]
        known = [(inputs, labels) for inputs, labels in found if labels is not None]
        if not known:
            raise RuntimeError(
                f"no training batch was seen: {self._name} was not called in training mode, was "
                f"compiled before attach(), or returns no tensor; give the training data, "
                f"data=(inputs, targets), or regularize the module that is called (with a "
                f"callback: model=<its name>)"
            )
        known = [(x, labels) for x, labels in known if form(x) == form(known[-1][0])]
        latest = slice(-self._most, None)
        inputs = take(joined([inputs for inputs, _ in known]), latest)
        return inputs, torch.cat([labels for _, labels in known])[latest]


Source = Given | Recent


def _with_arguments(pair: Any) -> Any:
    """Where inputs are a list, as loaders make it of several, it is of the model's arguments."""
    if isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], list):
        return tuple(pair[0]), pair[1]
    return pair


def _is_pair(data: Any) -> bool:
    return (
        isinstance(data, tuple | list)
        and len(data) == 2
        and isinstance(data[1], Tensor)
        and isinstance(data[0], Tensor | tuple | Mapping)
    )
