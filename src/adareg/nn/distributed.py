"""Updates by many processes: each layer has one owner, and all end with the same bits.

Of a weight that every process holds (DistributedDataParallel), the owner computes the precisions
and sends them to the others; where a rule looks at data, too, the first process owns all layers. Of
a sharded weight all compute the parts that concern their shards, and the owner decomposes the small
matrix that they have in common.

Before anything is sent, all tell each other whether they succeeded. If one did not, all raise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from adareg.core.decompose import Answer, Request, decompose
from adareg.core.linalg import NonFiniteError, is_sharded
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal
from adareg.core.rules import solve_all

#: What a decomposition of k³ counts beside a product of k³: between a CPU core, where it takes 5 to
#: 12 times as long (k = 1024, 128), and a GPU, where it takes much longer.
_EIGH = 20

#: Tensors up to this many bytes are sent together.
_TOGETHER_UP_TO = 2**20


def group_of(model: nn.Module, given: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The processes that train ``model`` together; None for one that trains alone."""
    if given is not None:
        return given
    model = getattr(model, "_orig_mod", model)  # out of torch.compile
    if isinstance(model, DistributedDataParallel):
        return model.process_group
    if dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    return None


def cost(shape: torch.Size) -> int:
    """What an update of weights (…, p, d) takes: products of p·d·k, decompositions of k³."""
    p, d = shape[-2:]
    k = min(p, d)
    return shape[:-2].numel() * (p * d * k + _EIGH * k**3)


def owners(costs: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Which rank works on what: the costliest first, each to the rank with least to do so far."""
    load = [0] * ranks
    chosen = {}
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        chosen[name] = load.index(min(load))
        load[chosen[name]] += costs[name]
    return chosen


def solve_together(
    weights: Mapping[str, Tensor],
    priors: Mapping[str, MatrixNormal],
    rule: str,
    bounds: tuple[float, float],
    team: Team,
) -> dict[str, MatrixNormal]:
    """:func:`adareg.core.rules.solve_all`, by all processes of a team.

    Raises:
        NonFiniteError: in every process, if a weight is not finite in one of them.
        RuntimeError: in every process, if one of them failed.
        ValueError: the processes do not have the same layers.
    """
    team.compare({name: tuple(W.shape) for name, W in weights.items()})
    sharded = {name: W for name, W in weights.items() if is_sharded(W)}
    same = {name: W for name, W in weights.items() if name not in sharded}
    solved = _solve_sharded(sharded, priors, rule, bounds, team) if sharded else {}
    if same:
        solved.update(_solve_same(same, priors, rule, bounds, team))
    return solved


def _solve_same(
    weights: Mapping[str, Tensor],
    priors: Mapping[str, MatrixNormal],
    rule: str,
    bounds: tuple[float, float],
    team: Team,
) -> dict[str, MatrixNormal]:
    """Every owner solves for its own layers and sends what it found."""
    chosen = owners({name: cost(W.shape) for name, W in weights.items()}, team.size)
    mine = {name: W for name, W in weights.items() if chosen[name] == team.rank}
    devices = {name: W.device for name, W in weights.items()}
    return _deliver(
        lambda: solve_all(mine, priors, rule, bounds) if mine else {},
        devices,
        team,
        doing=", ".join(mine),
    )


def follow_first(
    team: Team,
    solve: Callable[[], Mapping[str, MatrixNormal]],
    priors: Mapping[str, MatrixNormal],
    share: Callable[[], Any],
    restore: Callable[[Any], None],
) -> dict[str, MatrixNormal]:
    """Solve on the first rank, with data of its own, and send all others what it found.

    Args:
        team: the processes.
        solve: returns the new priors; called on the first rank.
        priors: the old ones.
        share: returns the rest of what the first rank has learned.
        restore: takes that on the others.

    Raises:
        NonFiniteError: in every process, if a weight or an output is not finite there.
        RuntimeError: in every process, if it failed.
        ValueError: the processes do not have the same layers.
    """
    team.compare({name: tuple(prior.shape) for name, prior in priors.items()})
    devices = {name: prior.row.values.device for name, prior in priors.items()}
    doing = ", ".join(priors)
    solved = _deliver(solve if team.rank == 0 else dict, devices, team, doing)
    learned = team.agree([], share() if team.rank == 0 else None, doing)[0]
    if team.rank:
        restore(learned)
    return solved


def _deliver(
    solve: Callable[[], Mapping[str, MatrixNormal]],
    devices: Mapping[str, torch.device],
    team: Team,
    doing: str,
) -> dict[str, MatrixNormal]:
    """The priors that every rank solves for, in all of them, each on its device."""
    errors: list[Exception] = []
    content: dict[_Key, Tensor] = {}
    with _kept(errors):
        content = {(n, k): x for n, prior in solve().items() for k, x in _factors(prior).items()}
    forms_of_mine = {key: _Form.of(factor) for key, factor in content.items()}
    listed = team.agree(errors, forms_of_mine, doing)
    device = next(iter(devices.values()))
    parcels: list[_Parcel] = []
    with _kept(errors):
        for rank, forms in enumerate(listed):
            parcels.append(_Parcel(forms, device, content if rank == team.rank else {}))
    team.agree(errors, None, doing=", ".join(devices))
    received: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for rank, parcel in enumerate(parcels):
        team.broadcast(parcel.buffers, rank)
        for (name, key), factor in parcel.unpack().items():
            received[name][key] = factor.to(devices[name])
    return {name: _prior(received[name]) for name in devices}


@contextmanager
def _kept(errors: list[Exception]) -> Iterator[None]:
    """An error is added to the list, for all processes to be told."""
    try:
        yield
    except Exception as error:
        errors.append(error)


def _solve_sharded(
    weights: Mapping[str, Tensor],
    priors: Mapping[str, MatrixNormal],
    rule: str,
    bounds: tuple[float, float],
    team: Team,
) -> dict[str, MatrixNormal]:
    """All solve for all layers in step; the owners decompose and send their answers."""
    from adareg.core.shards import collected_failures  # loads torch.distributed.tensor

    for name, W in weights.items():
        team.refuse_other_ranks(name, W.device_mesh.mesh.flatten().tolist())  # type: ignore[attr-defined]

    with collected_failures() as failures:

        def solver(requests: Mapping[str, Request]) -> dict[str, Answer]:
            costs = {name: q.matrix.shape[-1] ** 3 for name, q in requests.items()}
            chosen = owners(costs, team.size)
            errors, answers = list(failures), dict[str, Answer]()
            mine = {name: q for name, q in requests.items() if chosen[name] == team.rank}
            with _kept(errors):
                solved = decompose(mine) if mine and not errors else {}
                answers = {n: _to_share(solved.get(n), q) for n, q in requests.items()}
            found = {name: answers[name].resolved for name in mine if name in answers}
            doing = ", ".join(requests if failures else mine or requests)
            resolved = team.agree(errors, found, doing)
            for name, answer in answers.items():
                team.broadcast([answer.r, answer.Q], chosen[name])
            return {n: a._replace(resolved=resolved[chosen[n]][n]) for n, a in answers.items()}

        solved = solve_all(weights, priors, rule, bounds, solver)
        team.agree(failures, None, doing=", ".join(weights))
    return solved


class Team(NamedTuple):
    """The processes that work on an update.

    ``not_finite`` lists the layers of which this process holds a part that is not finite.
    """

    group: dist.ProcessGroup
    not_finite: Callable[[], list[str]]

    @property
    def rank(self) -> int:
        """This process among them."""
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        """How many they are."""
        return dist.get_world_size(self.group)

    def compare(self, layers: Mapping[str, tuple[int, ...]]) -> None:
        """Raise in every process unless all have the same layers."""
        everyone = self._exchange(dict(layers))
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                raise ValueError(
                    f"rank 0 regularizes {everyone[0]}, rank {rank} {theirs}; give it a "
                    f"process_group of those that train the same model"
                )

    def refuse_other_ranks(self, name: str, ranks: list[int]) -> None:
        """A weight may be sharded over some of these processes, if the others hold copies."""
        mine = dist.get_process_group_ranks(self.group)
        if not set(ranks) <= set(mine):
            raise ValueError(
                f"{name}: the weight is sharded over ranks {ranks}, the process group has "
                f"only {mine}; give it a process_group that has them all"
            )

    def agree(self, errors: list[Exception], message: Any, doing: str) -> list[Any]:
        """Every rank's message; if one failed, all raise, and name what it was ``doing``."""
        mine = [
            (isinstance(e, NonFiniteError), f"{doing}: {type(e).__name__}: {e}") for e in errors[:1]
        ]
        everyone = self._exchange((mine, message))
        failed = [
            (non_finite, f"rank {rank}: {text}")
            for rank, (listed, _) in enumerate(everyone)
            for non_finite, text in listed
        ]
        if failed:
            self._raise(failed, errors[0] if errors else None)
        return [message for _, message in everyone]

    def _raise(self, failed: list[tuple[bool, str]], cause: Exception | None) -> NoReturn:
        everyone = self._exchange(self.not_finite())
        kept = "all precisions are kept as they were"
        texts = [text for non_finite, text in failed if not non_finite]
        if texts and not any(everyone):
            raise RuntimeError(f"the update failed on {'; '.join(texts)}; {kept}") from cause
        bad = [f"{', '.join(names)} on rank {rank}" for rank, names in enumerate(everyone) if names]
        why = "the weight has NaN or infinite entries"
        text = f"{'; '.join(bad)}: {why}" if bad else "; ".join(text for _, text in failed)
        raise NonFiniteError(f"{text}; {kept}") from cause

    def _exchange(self, message: Any) -> list[Any]:
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, message, group=self.group)
        return everyone

    def broadcast(self, tensors: Iterable[Tensor], rank: int) -> None:
        """Overwrite the tensors with those of a rank."""
        source = dist.get_global_rank(self.group, rank)
        for tensor in tensors:
            dist.broadcast(tensor, source, group=self.group)


def _to_share(mine: Answer | None, request: Request) -> Answer:
    """The answer of the owner, to be sent; of another process, to be overwritten."""
    if mine is not None:
        return Answer(mine.r.contiguous(), mine.Q.contiguous(), mine.resolved)
    Q = torch.empty_like(request.matrix, memory_format=torch.contiguous_format)
    return Answer(Q.new_empty(Q.shape[:-1]), Q, resolved=True)


def _factors(prior: MatrixNormal) -> dict[str, Tensor]:
    """What is to be sent of a prior, without gaps in memory."""
    names = ("row.scale", "row.basis", "row.values", "col.scale", "col.basis", "col.values")
    factors = zip(names, [*prior.row.factors, *prior.col.factors], strict=True)
    return {name: _dense(factor) for name, factor in factors if factor is not None}


def _prior(factors: Mapping[str, Tensor]) -> MatrixNormal:
    row, col = (
        Precision(factors.get(f"{side}.scale"), factors[f"{side}.basis"], factors[f"{side}.values"])
        for side in ("row", "col")
    )
    return MatrixNormal(row, col)


def _dense(factor: Tensor) -> Tensor:
    gapless = factor.is_contiguous() or (factor.ndim > 1 and factor.mT.is_contiguous())
    return factor if gapless else factor.contiguous()


def _flat(factor: Tensor) -> Tensor:
    """The entries in the order in which they lie in memory."""
    return factor.as_strided((factor.numel(),), (1,))


class _Form(NamedTuple):
    """What a receiver must know of a tensor. Equal strides, too: then all ranks round alike."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, factor: Tensor) -> _Form:
        return cls(tuple(factor.shape), factor.stride(), factor.dtype)

    @property
    def size(self) -> int:
        return torch.Size(self.shape).numel()


_Key = tuple[str, str]  # the name of a layer, that of a factor


class _Parcel:
    """Factors in few tensors: small ones together, large ones as they are.

    Args:
        forms: what is in it.
        device: where it is to be.
        content: the factors themselves, on the rank that sends them.
    """

    def __init__(
        self, forms: Mapping[_Key, _Form], device: torch.device, content: Mapping[_Key, Tensor]
    ) -> None:
        self._forms = forms
        self._flat: dict[_Key, Tensor] = {}
        small: dict[torch.dtype, list[_Key]] = defaultdict(list)
        for key, form in forms.items():
            if form.size * form.dtype.itemsize <= _TOGETHER_UP_TO:
                small[form.dtype].append(key)
            elif content:
                self._flat[key] = _flat(content[key])
            else:
                self._flat[key] = torch.empty(form.size, dtype=form.dtype, device=device)
        self.buffers = list(self._flat.values())
        for dtype, keys in small.items():
            sizes = [forms[key].size for key in keys]
            buffer = torch.empty(sum(sizes), dtype=dtype, device=device)
            self._flat.update(zip(keys, buffer.split(sizes), strict=True))
            self.buffers.append(buffer)
            for key in keys if content else ():
                self._flat[key].copy_(_flat(content[key]))

    def unpack(self) -> dict[_Key, Tensor]:
        """The factors, as all ranks have them."""
        return {
            key: flat.as_strided(form.shape, form.stride, flat.storage_offset())
            for key, form in self._forms.items()
            for flat in [self._flat[key]]
        }
