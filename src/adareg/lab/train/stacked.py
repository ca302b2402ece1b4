"""Training many networks at once: all methods and seeds of a cell share every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal
from adareg.core.rules import solve_all
from adareg.lab.data import Dataset
from adareg.lab.train import draws
from adareg.lab.train.augmentation import crop_and_flip, pad_images
from adareg.lab.train.best_weights import Best
from adareg.lab.train.config import Config
from adareg.lab.train.draws import Purpose
from adareg.lab.train.methods import METHODS, Method, decov
from adareg.lab.train.networks import Architecture, Network
from adareg.lab.train.stack import Stack
from adareg.lab.train.stacked_priors import Evidence, Peers, load, workshop

#: Called with how many samples were just seen by how many networks.
Progress = Callable[[int], None]

#: An index of some replicas of a stack.
Members = slice | Tensor

#: Samples, over all replicas, of one forward pass of an evaluation.
_EVALUATE = {"cpu": 2**12, "cuda": 2**17}

#: Steps of one batch size within a block from which recording a CUDA graph pays.
_GRAPH_FROM = 16

#: How often early stopping looks at its held-out samples, at most.
CHECKS = 200


@dataclass(frozen=True)
class Replica:
    """One network of a stack: a method's name, a seed, and perhaps what the method tunes."""

    method: str
    seed: int
    value: float | None = None

    @property
    def recipe(self) -> Method:
        """The method, with the value."""
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
        self.padded = pad_images(self.x) if config.augment else None
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
        replicas: all with batch normalisation or all without; all with early stopping or all
            without.
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
        self.methods = [replica.recipe for replica in replicas]
        self.replicas, self.data, self.progress = replicas, data, progress
        self._stops_early = self.methods[0].stop_early
        whole, held_out = config.n, hold_out or self._stops_early
        self.config = config = config.without_held_out() if held_out else config
        device, dtype = data.x.device, data.x.dtype
        self.stack = Stack(
            [Network(architecture, r.seed, METHODS[r.method].batch_norm) for r in replicas],
            device,
            dtype,
        )
        chosen = {
            s: draws.subset(len(data.x), whole, s) for s in sorted({r.seed for r in replicas})
        }
        self.seeds = torch.tensor([replica.seed for replica in replicas], device=device)
        self._which = torch.tensor([list(chosen).index(r.seed) for r in replicas]).to(device)
        self._subsets = {seed: own[: config.n] for seed, own in chosen.items()}
        self.subset = self._share(self._subsets)
        self.held_out = self._share({seed: own[config.n :] for seed, own in chosen.items()})
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.optimizer = torch.optim.Adam(
            self.stack.parameters.values(),
            config.lr,
            fused=device.type == "cuda",
            capturable=device.type == "cuda",
        )
        strengths = torch.tensor([m.strengths(config) for m in self.methods], dtype=torch.float64)
        self._decay, self._rate, self._decov_weight, self._strength = strengths.to(
            device, dtype
        ).unbind(1)
        self._decayed = self._members(lambda method: method.strengths(config).weight_decay > 0)
        self._dropped = self._members(lambda method: method.strengths(config).dropout > 0)
        self._decorrelated = self._members(lambda method: method.strengths(config).decov > 0)
        self._regularized = self._regularized_layers()
        self.priors = {
            key: MatrixNormal.identity(self.stack.matrix(key[1])[members])
            for key, members in self._regularized.items()
        }
        by_evidence, by_peer = map(self._learning, ("evidence", "marginal-likelihood"))
        self._evidence = Evidence(*by_evidence) if by_evidence else None
        self._peers = Peers(*by_peer) if by_peer else None
        self._by_peer = self._members(lambda method: method.rule == "marginal-likelihood")
        if self._peers is not None:
            self._decays = self._peers.decays().to(device, dtype)
        self.best = Best({**self.stack.parameters, **self.stack.buffers}, len(replicas))
        self.train_loss = torch.zeros(len(replicas), dtype=dtype, device=device)
        self._graphs: dict[int, tuple[Tensor, torch.cuda.CUDAGraph]] = {}
        self._seen: dict[int, int] = defaultdict(int)
        self._steps_done = 0
        if self._evidence is not None:
            self._take_over_evidence(self._evidence)

    def run(self) -> Iterator[tuple[int, Tensor]]:
        """All blocks of epochs, an update after each block (Alg. 1).

        Yields each epoch's number and losses as it ends. Afterwards the replicas that choose
        among their weights have those they chose.
        """
        epochs = self.config.blocks * self.config.epochs
        for epoch in range(epochs):
            loss = self.epoch(epoch)
            if (epoch + 1) % self.config.epochs == 0:
                self.update()
            if self._stops_early and (epoch + 1) % -(-epochs // CHECKS) == 0:
                self.best.offer(self.validation_loss())
            yield epoch, loss
        self.best.restore()

    def epoch(self, epoch: int) -> Tensor:
        """One pass over the training samples; each replica's mean training loss, (R,)."""
        n, batch = self.config.n, self.config.batch
        ordered = {s: own[draws.order(n, s, epoch)] for s, own in self._subsets.items()}
        self.train_loss.zero_()
        for samples in self._share(ordered).split(batch, dim=1):
            self._run(samples.contiguous())
            self._steps_done += 1
            if self._evidence is not None and self._evidence.is_due(self._steps_done):
                self._evidence.update(self.stack.parameters, self._samples)
                self._take_over_evidence(self._evidence)
        self.progress(n * len(self.replicas))
        return self.train_loss / n

    @torch.no_grad()
    def update(self) -> None:
        """Alg. 1's second half: every AdaReg replica's precisions, in closed form.

        A replica whose weights are no longer finite is given those of zero weights; its record
        says that it diverged.
        """
        for (rule, layer), prior in self.priors.items():
            if rule == "evidence":
                continue
            W = self.stack.matrix(layer)[self._regularized[rule, layer]]
            W = torch.where(W.isfinite().all(-1).all(-1)[:, None, None], W, 0)
            solved = solve_all({layer: W}, {layer: prior}, rule, self.config.bounds)
            self.priors[rule, layer] = solved[layer]
        if self._peers is not None:
            self._peers.update(self.stack.parameters, self._samples)
            self._decays.copy_(self._peers.decays())
            scores = torch.full_like(self.best.scores, torch.inf)
            scores[self._peers.members] = scores.new_tensor(self._peers.scores)
            self.best.offer(scores)
        self._forget_recordings()

    def _samples(self, i: int) -> tuple[Tensor, Tensor]:
        """What a replica is trained on, as its own network takes it."""
        x, y = self.data.x[self.subset[i]], self.data.y[self.subset[i]]
        return (x.permute(0, 3, 1, 2) if x.ndim == 4 else x), y

    def _take_over_evidence(self, learner: Evidence) -> None:
        """Give the stack what was found, in place where it has the shape of what was there."""
        self._strength[learner.members] = self._strength.new_tensor(learner.strengths)
        for layer, found in learner.priors().items():
            prior = found.to(self.data.x.device)
            old = self.priors["evidence", layer]
            if all(a.basis.shape == b.basis.shape for a, b in _sides(old, prior)):
                old.copy_(prior)
            else:
                self.priors["evidence", layer] = prior
                self._forget_recordings()

    def _forget_recordings(self) -> None:
        self._graphs.clear()
        self._seen.clear()

    def validation_loss(self) -> Tensor:  # (R,), float64
        """Mean loss on the held-out samples."""
        return self._validate(self.data.loss)

    def validation_errors(self) -> Tensor:  # (R,), float64
        """The share of held-out samples that are put into a wrong class."""
        return self._validate(lambda output, labels: output.argmax(-1) != labels)

    def _validate(self, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        total = torch.zeros(len(self.replicas), dtype=torch.float64, device=self.data.x.device)
        for part, output in self.predict(self.data.x, self.held_out):
            total += measure(output, self.data.y[self.held_out[:, part]]).double().sum(1)
        return total / self.held_out.shape[1]

    def noises(self) -> dict[int, float]:
        """σ² of the replicas that have learned it."""
        learners = [learner for learner in (self._evidence, self._peers) if learner is not None]
        return {
            i: noise
            for learner in learners
            for i, noise in zip(learner.members, learner.noises, strict=True)
        }

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
        """The priors of one replica, by layer; none where its method has no AdaReg."""
        found = {}
        for (rule, layer), prior in self.priors.items():
            members = self._indices(_uses(rule, layer, self.stack))
            if replica in members:
                at = members.index(replica)
                found[layer] = prior.apply(lambda factor, at=at: factor[at])  # type: ignore[misc]
        return found

    def _share(self, per_seed: dict[int, Tensor]) -> Tensor:
        """What each seed has, given to all of its replicas, on the device."""
        return torch.stack(list(per_seed.values())).to(self.data.x.device)[self._which]

    def _regularized_layers(self) -> dict[tuple[str, str], Members]:
        """The replicas of every pair of a rule and a layer that some of them regularize."""
        keys = {
            (method.rule, layer): None
            for method in self.methods
            if method.rule not in (None, "marginal-likelihood")
            for layer in self.stack.layers(method.layers)
        }
        members = {key: self._members(_uses(*key, self.stack)) for key in keys}
        return {key: found for key, found in members.items() if found is not None}

    def _learning(self, rule: str) -> tuple[list[int], list[Network], str, int, str] | None:
        """The replicas whose priors are learned by a rule, as their learners want them."""
        members = self._indices(lambda method: method.rule == rule)
        if not members:
            return None
        (layers,) = {self.methods[i].layers for i in members}
        architecture, like = self.stack.architecture, self.data.x
        where = workshop(architecture, like.device)
        networks = [Network(architecture, 0).to(where, like.dtype) for _ in members]
        for i, network in zip(members, networks, strict=True):
            load(network, self.stack.parameters, i)
        return members, networks, layers, self.config.n, self.data.task

    def _indices(self, condition: Callable[[Method], bool]) -> list[int]:
        return [i for i, method in enumerate(self.methods) if condition(method)]

    def _members(self, condition: Callable[[Method], bool]) -> Members | None:
        """The replicas whose method fulfils the condition; a slice where they are neighbours."""
        found = self._indices(condition)
        if not found:
            return None
        if found == list(range(found[0], found[-1] + 1)):
            return slice(found[0], found[-1] + 1)
        return torch.tensor(found, device=self.data.x.device)

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
        """How many steps of a block have a batch of this size."""
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
        x, y = self._batch(samples), self.data.y[samples]
        *hidden, output = self.stack.forward(x, training=True, drop=self._dropper())
        loss = self.data.loss(output, y)
        total = loss.mean(1).sum() + self._decov(hidden)
        parameters = self.stack.parameters
        found = torch.autograd.grad(total, list(parameters.values()))
        grads = {name: g.contiguous() for name, g in zip(parameters, found, strict=True)}
        with torch.no_grad():
            self.train_loss += loss.detach().sum(1)
            self._regularize(grads)
            for name, parameter in parameters.items():
                parameter.grad = grads[name]
            self.optimizer.step()
            self.step += 1

    def _batch(self, samples: Tensor) -> Tensor:
        if self.data.padded is None:
            return self.data.x[samples]
        return crop_and_flip(self.data.padded, samples, self.seeds, self.step)

    def _dropper(self) -> Callable[[Tensor, int], Tensor] | None:
        members = self._dropped
        if members is None:
            return None
        rate = self._rate[members, None, None]
        first = 0 if self.stack.architecture.channels else 1

        def drop(h: Tensor, place: int) -> Tensor:
            if place < first:
                return h
            shape = (h.shape[1], h.shape[2])
            draw = draws.uniform(self.seeds[members], Purpose.DROPOUT + place, self.step, shape)
            scale = torch.ones_like(h)
            scale[members] = (draw >= rate.float()).to(h.dtype) / (1 - rate)
            return h * scale

        return drop

    def _decov(self, hidden: Sequence[Tensor]) -> Tensor | float:
        members = self._decorrelated
        if members is None:
            return 0.0
        return sum((self._decov_weight[members] * decov(h[members])).sum() for h in hidden)

    def _regularize(self, grads: dict[str, Tensor]) -> None:
        """Add the gradients of weight decay and of AdaReg's penalty, each to its own replicas."""
        if self._decayed is not None:
            self._add_decay(grads, self._decayed, self._decay[self._decayed, None])
        if self._by_peer is not None:
            self._add_decay(grads, self._by_peer, self._decays)
        for key, prior in self.priors.items():
            members, name = self._regularized[key], f"{key[1]}.weight"
            product = prior.product(self.stack.matrix(key[1])[members])
            added = 2 * self._strength[members, None, None] * product
            grads[name][members] += added.view_as(grads[name][members]).to(grads[name].dtype)

    def _add_decay(self, grads: dict[str, Tensor], members: Members, decay: Tensor) -> None:
        """``decay`` is (members, parameter tensors), or one for all tensors."""
        each = decay.expand(-1, len(self.stack.parameters)).unbind(1)
        for (name, parameter), rate in zip(self.stack.parameters.items(), each, strict=True):
            own = parameter[members]
            grads[name][members] += rate.view(-1, *[1] * (own.ndim - 1)) * own


def _sides(one: MatrixNormal, other: MatrixNormal) -> list[tuple[Precision, Precision]]:
    return [(one.row, other.row), (one.col, other.col)]


def _uses(rule: str, layer: str, stack: Stack) -> Callable[[Method], bool]:
    return lambda method: method.rule == rule and layer in stack.layers(method.layers)


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
    """What can share a stack; methods in their own order.

    Not with and without batch normalisation, nor with and without early stopping.
    """
    rank = {name: i for i, name in enumerate(METHODS)}
    groups: dict[tuple[bool, bool], list[Replica]] = defaultdict(list)
    for replica in sorted(replicas, key=lambda r: (rank[r.method], r.seed, r.value or 0)):
        method = METHODS[replica.method]
        groups[method.batch_norm, method.stop_early].append(replica)
    return list(groups.values())
