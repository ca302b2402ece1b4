"""Training many networks at once: all methods and seeds of a cell share every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from adareg.core.prior import MatrixNormal
from adareg.lab.data import Dataset
from adareg.lab.train import draws
from adareg.lab.train.best_weights import BestWeights
from adareg.lab.train.config import Config
from adareg.lab.train.ingredients.base import Ingredient, Members, StackedPart
from adareg.lab.train.methods import METHODS, Method
from adareg.lab.train.networks import Architecture, Network
from adareg.lab.train.stack import Stack

#: Called with how many samples were just seen by how many networks.
Progress = Callable[[int], None]

#: Samples, over all replicas, of one forward pass of an evaluation.
_EVALUATE = {"cpu": 2**12, "cuda": 2**17}

#: Steps of one batch size within a block from which recording a CUDA graph pays.
_GRAPH_FROM = 16


@dataclass(frozen=True)
class Replica:
    """One network of a stack: a method's name, a seed, and perhaps what the method tunes."""

    method: str
    seed: int
    value: float | None = None

    @property
    def recipe(self) -> Method:
        """Return the method, with the value."""
        return METHODS[self.method].tuned(self.value)


class Data:
    """A data set where it is trained on: images channels last, in the stack's dtype."""

    def __init__(
        self, source: Dataset, config: Config, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.task = source.task
        test = slice(0, config.test or None)
        self.x, self.x_test = (
            _channels_last(x).to(device, dtype) for x in (source.x_train, source.x_test[test])
        )
        self.y, self.y_test = (
            y.to(device, dtype if y.is_floating_point() else None)
            for y in (source.y_train, source.y_test[test])
        )

    def loss(self, output: Tensor, target: Tensor) -> Tensor:  # (R, B, k), (R, B[, k]) -> (R, B)
        """Each sample's loss: cross entropy, or the mean of the squared errors of its tasks."""
        if self.task == "regression":
            return (output - target).square().mean(-1)
        flat = cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none")
        return flat.view(target.shape)


class Trainer:
    """A stack of replicas and the state of their training.

    Seeds are paired: every replica of a seed starts from the same weights, and sees the same
    samples in the same batches with the same augmentation and dropout masks.

    Args:
        replicas: such as can share a stack; see :func:`stacks`.
        architecture: of every network.
        config: the cell.
        data: the data set, on the device of training.
        progress: told about every epoch.
        hold_out: leave a fifth of the samples out of training, as early stopping does.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        architecture: Architecture,
        config: Config,
        data: Data,
        progress: Progress = lambda samples: None,
        hold_out: bool = False,
    ) -> None:
        self.replicas, self.data, self.progress = replicas, data, progress
        self.indices = range(len(replicas))
        methods = [replica.recipe for replica in replicas]
        held_out = hold_out or methods[0].holds_out
        self.config = config.without_held_out() if held_out else config
        device, dtype = data.x.device, data.x.dtype
        self.stack = Stack(
            [
                Network(architecture, replica.seed, **method.network(self.config))
                for replica, method in zip(replicas, methods, strict=True)
            ],
            device,
            dtype,
        )
        self._share_samples(config.n)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.optimizer = torch.optim.Adam(
            self.stack.parameters.values(),
            config.lr,
            fused=device.type == "cuda",
            capturable=device.type == "cuda",
        )
        self.best = BestWeights({**self.stack.parameters, **self.stack.buffers}, len(replicas))
        self.train_loss = torch.zeros(len(replicas), dtype=dtype, device=device)
        self._graphs: dict[int, tuple[Tensor, torch.cuda.CUDAGraph]] = {}
        self._seen: dict[int, int] = defaultdict(int)
        self._steps_done = 0
        self.parts = self._make_parts(methods)

    def _share_samples(self, n: int) -> None:
        """Give each replica its seed's samples: n, of which some may be held out."""
        seeds = [replica.seed for replica in self.replicas]
        chosen = {seed: draws.subset(len(self.data.x), n, seed) for seed in sorted({*seeds})}
        used = self.config.n
        self.seeds = torch.tensor(seeds, device=self.data.x.device)
        self._which = torch.tensor([list(chosen).index(s) for s in seeds]).to(self.data.x.device)
        self._subsets = {seed: own[:used] for seed, own in chosen.items()}
        self.subset = self._share(self._subsets)
        self.held_out = self._share({seed: own[used:] for seed, own in chosen.items()})

    def _make_parts(self, methods: Sequence[Method]) -> list[StackedPart]:
        """A part for each group of ingredients, with the replicas that have one of it."""
        groups: dict[Hashable, dict[int, Ingredient]] = defaultdict(dict)
        for i, method in enumerate(methods):
            for ingredient in method.ingredients_in(self.config):
                groups[ingredient.group][i] = ingredient
        return [next(iter(own.values())).make_stacked_part(own, self) for own in groups.values()]

    def run(self) -> Iterator[tuple[int, Tensor]]:
        """Train for all blocks of epochs, with an update after each block (Alg. 1).

        Yields each epoch's number and losses as it ends. Afterwards the replicas that choose
        among their weights have those they chose.
        """
        epochs = self.config.blocks * self.config.epochs
        for epoch in range(epochs):
            loss = self.epoch(epoch)
            if (epoch + 1) % self.config.epochs == 0:
                self.update()
            for part in self.parts:
                part.after_epoch(epoch, epochs)
            yield epoch, loss
        self.best.restore()

    def epoch(self, epoch: int) -> Tensor:
        """Pass once over the training samples; return each replica's mean training loss, (R,)."""
        n, batch = self.config.n, self.config.batch
        ordered = {s: own[draws.order(n, s, epoch)] for s, own in self._subsets.items()}
        self.train_loss.zero_()
        for samples in self._share(ordered).split(batch, dim=1):
            self._run(samples.contiguous())
            self._steps_done += 1
            changed = [part.after_step(self._steps_done) for part in self.parts]
            if any(changed):
                self._forget_recordings()
        self.progress(n * len(self.replicas))
        return self.train_loss / n

    def update(self) -> None:
        """Let all parts act at the end of a block (Alg. 1's second half)."""
        for part in self.parts:
            part.after_block()
        self._forget_recordings()

    def samples(self, i: int) -> tuple[Tensor, Tensor]:
        """Return what a replica is trained on, as its own network takes it."""
        x, y = self.data.x[self.subset[i]], self.data.y[self.subset[i]]
        return (x.permute(0, 3, 1, 2) if x.ndim == 4 else x), y

    def tensor(self, values: Sequence[float]) -> Tensor:
        """Return numbers on the device of training, in the stack's dtype."""
        return torch.tensor(values, dtype=torch.float64).to(self.data.x.device, self.data.x.dtype)

    def members(self, replicas: Collection[int]) -> Members:
        """Return an index of some replicas, in order; a slice where they are neighbours."""
        found = sorted(replicas)
        if found == list(range(found[0], found[-1] + 1)):
            return slice(found[0], found[-1] + 1)
        return torch.tensor(found, device=self.data.x.device)

    def _forget_recordings(self) -> None:
        self._graphs.clear()
        self._seen.clear()

    def validation_loss(self) -> Tensor:  # (R,), float64
        """Return the mean loss on the held-out samples."""
        return self._validate(self.data.loss)

    def validation_errors(self) -> Tensor:  # (R,), float64
        """Return the share of held-out samples that are put into a wrong class."""
        return self._validate(lambda output, labels: output.argmax(-1) != labels)

    def _validate(self, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        total = torch.zeros(len(self.replicas), dtype=torch.float64, device=self.data.x.device)
        for part, output in self.predict(self.data.x, self.held_out):
            total += measure(output, self.data.y[self.held_out[:, part]]).double().sum(1)
        return total / self.held_out.shape[1]

    def noises(self) -> dict[int, float]:
        """Return σ² of the replicas that know it."""
        return {i: noise for part in self.parts for i, noise in part.noises().items()}

    @torch.no_grad()
    def predict(self, x: Tensor, samples: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Outputs (R, b, k) part by part, so that memory does not grow with the samples.

        Args:
            x: what all replicas are given, (N, …).
            samples: which of ``x`` each replica is given instead of all, (R, n) indices.
        """
        total, R = (len(x) if samples is None else samples.shape[1]), len(self.replicas)
        size = max(1, _EVALUATE[x.device.type] // R)
        for start in range(0, total, size):
            part = slice(start, min(start + size, total))
            chunk = x[part].expand(R, *x[part].shape) if samples is None else x[samples[:, part]]
            yield part, self.stack.forward(chunk)[-1]

    def prior(self, replica: int) -> dict[str, MatrixNormal]:
        """Return the priors of one replica, by layer; none where its method has none."""
        return {k: prior for part in self.parts for k, prior in part.prior(replica).items()}

    def _share(self, per_seed: dict[int, Tensor]) -> Tensor:
        """Return what each seed has for all of its replicas, on the device."""
        return torch.stack(list(per_seed.values())).to(self.data.x.device)[self._which]

    def _run(self, samples: Tensor) -> None:
        """One step, on a GPU replayed from a recording where that pays."""
        size = samples.shape[1]
        self._seen[size] += 1
        if size in self._graphs:
            buffer, graph = self._graphs[size]
            buffer.copy_(samples)
            graph.replay()
        elif samples.is_cuda and self._seen[size] == 3 and self._steps(size) >= _GRAPH_FROM:
            self._graphs[size] = self._record(samples)
            self._graphs[size][1].replay()
        else:
            self._step(samples)

    def _steps(self, size: int) -> int:
        """Count the steps of a block with a batch of this size."""
        n, batch, epochs = self.config.n, self.config.batch, self.config.epochs
        return epochs * (n // batch if size == batch else 1)

    def _record(self, samples: Tensor) -> tuple[Tensor, torch.cuda.CUDAGraph]:
        buffer, graph = samples.clone(), torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values()))[1].pool() if self._graphs else None
        self.optimizer.zero_grad()
        with torch.cuda.graph(graph, pool=pool):
            self._step(buffer)
        return buffer, graph

    def _step(self, samples: Tensor) -> None:  # (R, B) indices
        *hidden, output = self.stack.forward(self._inputs(samples), training=True, drop=self._drop)
        loss = self.data.loss(output, self.data.y[samples])
        extra = [each for part in self.parts if (each := part.loss(hidden)) is not None]
        total = sum(extra, loss.mean(1).sum())
        parameters = self.stack.parameters
        found = torch.autograd.grad(total, list(parameters.values()))
        grads = {name: g.contiguous() for name, g in zip(parameters, found, strict=True)}
        with torch.no_grad():
            self.train_loss += loss.detach().sum(1)
            for part in self.parts:
                part.add_gradients(grads)
            for name, parameter in parameters.items():
                parameter.grad = grads[name]
            self.optimizer.step()
            self.step += 1

    def _inputs(self, samples: Tensor) -> Tensor:
        for part in self.parts:
            if (changed := part.inputs(samples)) is not None:
                return changed
        return self.data.x[samples]

    def _drop(self, h: Tensor, place: int) -> Tensor:
        for part in self.parts:
            h = part.drop(h, place)
        return h


def _channels_last(x: Tensor) -> Tensor:  # (N, C, H, W) -> (N, H, W, C)
    """Images with strides that say so even for a single channel, which convolutions look at."""
    if x.ndim != 4:
        return x
    N, C, H, W = x.shape
    return x.permute(0, 2, 3, 1).flatten(1).view(N, H, W, C)


@contextmanager
def products(precision: str) -> Iterator[torch.dtype]:
    """Set how float32 products are made for a while; what to train in."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield torch.float64 if precision == "float64" else torch.float32
    finally:
        torch.set_float32_matmul_precision(before)


def stacks(replicas: Sequence[Replica]) -> list[list[Replica]]:
    """Return what can share a stack; methods in their own order."""
    rank = {name: i for i, name in enumerate(METHODS)}
    groups: dict[Hashable, list[Replica]] = defaultdict(list)
    for replica in sorted(replicas, key=lambda r: (rank[r.method], r.seed, r.value or 0)):
        groups[METHODS[replica.method].apart].append(replica)
    return list(groups.values())
