"""Everything that needs several processes, in one launch: ``torchrun checks.py FOLDER``.

Each check is run by every rank; what became of it goes to FOLDER/<ranks>-<rank>.json. Checkpoints
are saved there by four ranks, and loaded by two.
"""

import json
import os
import re
import sys
import time
import traceback
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from jobs import (
    DEVICE,
    STEPS,
    Training,
    assert_alike,
    batch,
    fingerprints,
    make_model,
    make_reg,
    rank_and_size,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import adareg
from adareg import AdaReg, EvidenceReg, NonFiniteError
from adareg.bench.distributed import Head
from adareg.core import linalg, shards
from adareg.core.linalg import local, whole
from adareg.nn import distributed
from adareg.nn.distributed import cost, owners

#: How the penalty gets in, the rule, parts of a batch, what is computed first.
CASES = [
    ("coupled", "joint", 1, "loss"),
    ("proximal", "alternating", 1, "loss"),
    ("loss", "official", 1, "loss"),
    ("loss", "joint", 2, "penalty"),
    ("coupled", "alternating", 2, "loss"),
    ("proximal", "rows alone", 1, "loss"),
]
CHECKS = {}
#: Checks of what a world of four has left behind.
LATER = ["checkpoints_of_four_ranks_are_loaded"]

#: Seconds after which a collective is given up.
TIMEOUT = 30


def folder():
    return Path(sys.argv[1])


def check(*ranks, name=None, cuda=False):
    """A function to be run with so many ranks; or on GPUs, on as many as there are."""

    def add(function):
        CHECKS[name or function.__name__] = (ranks, cuda, function)
        return function

    return add


def in_each(engine, case):
    def run(expected):
        training = Training(ENGINES[engine](), *case).run()
        assert_alike(training.outcome(), expected[case])
        assert_same_bits(training)

    ranks = [4] if engine == "fsdp each layer" else [1, 2, 4]
    check(*ranks, name=f"{engine} {case}", cuda=True)(run)


def ddp():
    return DistributedDataParallel(make_model())


def fsdp(model=None, **options):
    return fully_shard(model or make_model(), **options)


def fsdp_each():
    model = make_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


ENGINES = {"ddp": ddp, "fsdp": fsdp, "fsdp each layer": fsdp_each}
for engine in ("ddp", "fsdp"):
    for case in CASES:
        in_each(engine, case)
in_each("fsdp each layer", CASES[3])


def assert_same_bits(training):
    everyone = gathered(fingerprints(training))
    assert len(set(everyone)) == 1, everyone


def gathered(message):
    everyone = [None] * rank_and_size()[1]
    dist.all_gather_object(everyone, message)
    return everyone


@check(2)
def the_module_of_a_ddp_model(expected):
    case = CASES[0]
    model = ddp()
    training = Training(model, *case)
    training.reg = make_reg(model.module, case[1])
    assert training.reg.layers.keys() == AdaReg(model, layers="all").layers.keys() == {*"0245"}
    training.optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    training.reg.attach(training.optimizer, case[0], update_every=2)
    assert_alike(training.run().outcome(), expected[case])


@check(2)
def tensor_parallel(expected):
    """Shard(0), Shard(1), Shard(0), and a layer that is plain."""
    case = CASES[1]
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    training = Training(parallelized(mesh), *case, share=(0, 1)).run()
    assert_alike(training.outcome(), expected[case])


@check(2)
def replicated_dtensors(expected):
    mesh, model = init_device_mesh(DEVICE, (2,)), make_model()
    for layer in model:
        for name, weight in list(layer.named_parameters()):
            spread = distribute_tensor(weight.detach(), mesh, [Replicate()])
            setattr(layer, name, nn.Parameter(spread))
    reg = AdaReg(model, layers="all", strength=1e-3)
    alone = AdaReg(make_model(), layers="all", strength=1e-3)
    for one in (reg, alone):
        one.update()
        one.update()
    assert_alike(reg.penalty(), alone.penalty())
    assert {type(p.row.basis) for p in reg.priors.values()} == {torch.Tensor}


def parallelized(mesh):
    gather = ColwiseParallel(output_layouts=Replicate())
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": gather}
    return parallelize_module(make_model(), mesh, plan)


@check(4)
def fsdp_and_tensor_parallel(expected):
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
    everywhere = Replicate()  # layer 0 is sharded along one dimension of the mesh alone
    plan = {
        "2": RowwiseParallel(input_layouts=everywhere),
        "4": ColwiseParallel(output_layouts=everywhere),
    }
    model = parallelize_module(make_model(), mesh["tp"], plan)
    model = fully_shard(model, mesh=mesh["dp"])
    assert model[2].weight.device_mesh.ndim == 2
    for case in CASES[1:3]:
        model.load_state_dict({n: spread_like(w, model, n) for n, w in whole_state().items()})
        training = Training(model, *case, share=(mesh.get_local_rank("dp"), 2)).run()
        assert_alike(training.outcome(), expected[case])


def whole_state():
    return make_model().state_dict()


def spread_like(tensor, model, name):
    like = model.state_dict()[name]
    return distribute_tensor(tensor, like.device_mesh, like.placements)


@check(4)
def shards_that_cannot_have_a_prior_are_refused(expected):
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(make_model(), mesh["tp"], {"0": ColwiseParallel()})
    model = fully_shard(model, mesh=mesh["dp"])
    with raises(ValueError, "0: axis 0 of (18, 6) is cut along two dimensions of the mesh"):
        AdaReg(model, layers="0")
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    with raises(ValueError, "0: the weight is parametrized and its parameters are sharded"):
        AdaReg(fully_shard(normed))


@check(4)
def replicas_of_shards(expected):
    case = CASES[4]
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("replicate", "shard"))
    training = Training(fsdp(mesh=mesh), *case).run()
    assert_alike(training.outcome(), expected[case])
    assert_same_bits(training)


@check(2, cuda=True)
def cpu_offload(expected):
    for case in CASES[2:4]:
        model = fsdp(offload_policy=CPUOffloadPolicy(pin_memory=DEVICE == "cuda"))
        assert_alike(Training(model, *case).run().outcome(), expected[case])


@check(2, cuda=True)
def mixed_precision(expected):
    """Precisions come from the float64 weights, not from the bfloat16 copies of a forward pass."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float64)
    model = fsdp(mp_policy=policy, reshard_after_forward=False)
    training = Training(model, "loss", "joint").run()
    training.model(torch.zeros(2, 6, device=DEVICE))  # its weights are gathered now, and bfloat16
    assert not isinstance(model[0].weight, DTensor)
    training.reg.update()
    for name, layer in training.reg.layers.items():
        weight = whole(layer.weight.detach())
        alone = adareg.solve(weight, bounds=training.reg.bounds)
        prior = training.reg.priors[name].apply(whole)
        assert weight.dtype == torch.float64
        assert_alike([prior.row.dense(), prior.col.dense()], [alone.row.dense(), alone.col.dense()])


class Layers(nn.Module):
    """Every kind of layer; nobody calls it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(3, 6, 3)
        self.grouped = nn.Conv2d(4, 8, 3, groups=2)
        self.back = nn.ConvTranspose2d(4, 6, 3)
        self.embed = nn.Embedding(11, 5)
        self.attention = nn.MultiheadAttention(6, 2)
        self.one = nn.Linear(7, 1)
        self.double()
        self.large = nn.Linear(650, 410)  # so large that its factors are float32


@check(2, 4, cuda=True)
def every_kind_of_layer(expected):
    for mode in ("coupled", "proximal"):
        alone, model = Layers().to(DEVICE), Layers().to(DEVICE)
        fully_shard(model.large)
        fully_shard(model)
        (found, *large), rest = kicked(model, mode, sharded=True)
        (others, *other_large), other_rest = kicked(alone, mode, sharded=False)
        assert_alike(found, others)
        assert_alike([large, rest], [other_large, other_rest], 1e-5)


def kicked(model, mode, sharded):
    """Steps with random gradients, and updates."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    group = None if sharded else alone_group()
    reg = AdaReg(model, "all", strength=1e-3, bounds=(0.1, 10), process_group=group)
    reg.attach(optimizer, mode, update_every=1)
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        for parameter in model.parameters():
            grad = torch.randn(parameter.shape, generator=generator).to(DEVICE, parameter.dtype)
            if sharded:
                grad = distribute_tensor(grad, parameter.device_mesh, parameter.placements)
            parameter.grad = grad
        optimizer.step()
    weights = {name: whole(parameter.detach()) for name, parameter in model.named_parameters()}
    large = weights.pop("large.weight"), weights.pop("large.bias")
    return (weights, *large), (reg.penalty().detach(), reg.metrics())


@check(2, 4)
def functions_of_a_weight_take_a_sharded_one(expected):
    """As model.parameters() has it: sharded along its rows, whichever side is the longer."""
    model = fsdp()
    for name, weight in make_model().named_parameters():
        if weight.ndim == 2:
            found, alone = (everything(w.detach()) for w in (model.get_parameter(name), weight))
            assert_alike(found, alone)


def everything(W):
    """All that can be asked about a weight, and about its priors."""
    found = [adareg.stable_rank(W), adareg.spectral_norm(W), adareg.correlation(W)]
    for rule in ("joint", "alternating", "official"):
        prior = adareg.solve(W, rule, bounds=(0.1, 10))
        prior = adareg.solve(W, rule, bounds=(0.1, 10), prior=prior)
        found += [prior.penalty(W), prior.objective(W), prior.gradient(W), prior.proximal(W, 0.1)]
        for side in (prior.row, prior.col):
            X = torch.eye(side.shape[-1], dtype=W.dtype, device=W.device)
            found += [side.dense(), side.covariance(), side.eigenvalues(), side.logdet(), side @ X]
    return [whole(tensor) for tensor in found]


def alone_group():
    """A group of this rank only; all ranks make all of them."""
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]


@check(2, 4)
def each_matrix_is_decomposed_by_its_owner_alone(expected):
    model = nn.Sequential(*(nn.Linear(d, p) for p, d in [(5, 30), (30, 20), (9, 14), (11, 8)]))
    reg = AdaReg(model, layers="all", rule="joint")
    for sharded in (False, True):
        if sharded:
            fully_shard(model)
        with watched_eigh() as sizes:
            reg.update()
        shapes = {name: layer.blank.shape for name, layer in reg.layers.items()}
        costs = {n: min(shape) ** 3 if sharded else cost(shape) for n, shape in shapes.items()}
        chosen = owners(costs, dist.get_world_size())
        mine = [min(shapes[n]) for n in chosen if chosen[n] == dist.get_rank()]
        assert sorted(sizes) == sorted(mine)
        assert sorted(size for each in gathered(sizes) for size in each) == [5, 8, 9, 20]


@contextmanager
def watched_eigh(failing=False):
    """The sizes of what this rank decomposes; if failing, the first raises."""
    sizes, original = [], torch.linalg.eigh

    def eigh(A):
        sizes.extend([A.shape[-1]] * max(1, A[..., 0, 0].numel()))
        if failing:
            raise ValueError("eigh is broken on purpose")
        return original(A)

    torch.linalg.eigh = eigh
    try:
        yield sizes
    finally:
        torch.linalg.eigh = original


def raises(kind, *texts):
    """With all these texts in the message."""
    return pytest.raises(kind, match="".join(f"(?=.*{re.escape(text)})" for text in texts))


@check(2, 4)
def a_rank_that_fails_makes_all_raise(expected):
    """An owner that cannot decompose; a part of a sum that cannot be computed."""
    for engine in (ddp, fsdp):
        training = Training(engine(), *CASES[0]).run()
        before = fingerprints(training)
        texts = "failed on rank 1:", "eigh is broken on purpose", "are kept"
        with watched_eigh(failing=dist.get_rank() == 1), raises(RuntimeError, *texts):
            training.reg.update()
        assert fingerprints(training) == before
    for function in ("_gram", "_inverse_root"):
        original = getattr(linalg, function)
        if dist.get_rank() == 1:
            setattr(linalg, function, broken)
        try:
            with raises(RuntimeError, "rank 1: 0, 2, 4, 5: ZeroDivisionError: broken", "kept"):
                training.reg.update()
        finally:
            setattr(linalg, function, original)
        assert fingerprints(training) == before
    training.run(range(STEPS))
    assert fingerprints(training) != before
    assert_same_bits(training)


def broken(*args):
    raise ZeroDivisionError("broken")


@check(2, 4)
def a_rank_without_room_for_its_part_makes_all_raise(expected):
    """For what it is to send, to receive, or to put beside its shard."""
    for engine, case, module, function in [
        (ddp, CASES[0], distributed, "_factors"),
        (ddp, CASES[0], distributed, "_Parcel"),
        (fsdp, CASES[0], distributed, "_to_share"),
        (fsdp, CASES[1], shards, "_part"),
    ]:
        training = Training(engine(), *case).run()
        before, original = fingerprints(training), getattr(module, function)
        if dist.get_rank() == 1:
            setattr(module, function, broken)
        try:
            with raises(RuntimeError, "rank 1: ", "ZeroDivisionError: broken", "are kept"):
                training.reg.update()
        finally:
            setattr(module, function, original)
        assert fingerprints(training) == before
        training.reg.update()
        assert_same_bits(training)


@check(2)
def the_group_of_a_compiled_ddp_model(expected):
    mine = alone_group()
    model = torch.compile(DistributedDataParallel(make_model(), process_group=mine))
    reg = AdaReg(model, layers=["0", "2"][dist.get_rank()])
    reg.update()  # with all ranks it would be refused
    assert_alike(reg.penalty().detach(), updated_alone(reg, mine).penalty().detach())


def updated_alone(reg, group):
    alone = AdaReg(make_model(), layers=list(reg.layers), process_group=group)
    alone.update()
    return alone


@check(2, 4, cuda=True)
def a_weight_that_is_not_finite_is_named_on_all_ranks(expected):
    for engine in (ddp, fsdp):
        training = Training(engine(), *CASES[1]).run()
        before = training.reg.state_dict()["priors"]["2"]["col"][2].clone()
        weight = local(training.reg.layers["2"].weight.detach())
        kept = weight.clone()
        last = dist.get_world_size() - 1
        if engine is ddp or dist.get_rank() == last:
            weight[0, 0] = torch.nan
        texts = [f"2 on rank {last}"] if last else []  # DDP on one rank is no different from none
        with raises(NonFiniteError, *texts, "NaN or infinite entries", "are kept"):
            training.reg.update()
        assert torch.equal(training.reg.priors["2"].col.values, before)
        weight.copy_(kept)
        training.reg.update()


@check(2)
def other_layers_are_refused_on_all_ranks(expected):
    reg = AdaReg(make_model(), layers=["0", "2"][dist.get_rank()])
    with raises(ValueError, "rank 0 regularizes {'0': (18, 6)}, rank 1 {'2': (18, 18)}"):
        reg.update()


@check(4)
def two_models_with_two_ranks_each(expected):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[dist.get_rank() // 2]
    reg = AdaReg(make_model(), layers=["0", "2"][dist.get_rank() // 2], process_group=mine)
    reg.update()
    (name,) = reg.priors
    alone = AdaReg(make_model(), layers=name, process_group=alone_group())
    alone.update()
    assert_alike(reg.penalty(), alone.penalty())
    mesh = init_device_mesh(DEVICE, (4,))
    reg = AdaReg(fully_shard(make_model(), mesh=mesh), process_group=mine)
    with raises(ValueError, "5: the weight is sharded over ranks [0, 1, 2, 3], the process group"):
        reg.update()


#: What torch wraps around a collective, or makes of one that is counted already.
OVERHEAD = ("wait_tensor", "_wrap_tensor_autograd", "_allgather_base_")


class Traffic(TorchDispatchMode):
    """Bytes that are given to collectives, by kind."""

    def __init__(self):
        super().__init__()
        self.bytes = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        name = function._schema.name.split("::")
        if name[0] in ("c10d", "_c10d_functional") and name[1] not in OVERHEAD:
            tensors = args[0] if isinstance(args[0], list | tuple) else [args[0]]
            size = sum(t.numel() * t.itemsize for t in tensors if isinstance(t, torch.Tensor))
            self.bytes[name[1]] = self.bytes.get(name[1], 0) + size
        return function(*args, **kwargs or {})

    def total(self):
        """Of sums, broadcasts and exchanges of shards, which gloo does as an all-gather.

        Not of the short messages in which ranks tell each other how they fared.
        """
        counted = ("allreduce_", "broadcast_", "all_gather_into_tensor")
        assert self.bytes.keys() <= {*counted, "allgather_"}, self.bytes
        return sum(self.bytes.get(kind, 0) for kind in counted)


@check(2, 4)
def as_many_bytes_as_counted(expected):
    ranks = dist.get_world_size()
    for p, d in [(40, 12), (12, 40)]:
        for rule in ("joint", "alternating"):
            head = Head(p, d, ranks, rule)
            for engine, counted in (("fsdp", head.fsdp_traffic()), ("ddp", head.ddp_traffic())):
                model = nn.Sequential(nn.Linear(d, p, bias=False))
                model = fully_shard(model) if engine == "fsdp" else DistributedDataParallel(model)
                optimizer = torch.optim.SGD(model.parameters(), 0.1)
                reg = AdaReg(model, rule=rule)
                reg.update()
                found = {}
                with Traffic() as traffic:
                    reg.update()
                found["update"] = traffic.total()
                for mode in ("coupled", "proximal"):
                    handle = reg.attach(optimizer, mode)
                    for parameter in model.parameters():
                        parameter.grad = torch.zeros_like(parameter)
                    with Traffic() as traffic:
                        optimizer.step()
                    found[mode] = traffic.total()
                    handle.remove()
                assert found == counted, (engine, rule, p, d, found, counted)


@check(4)
def checkpoints_are_saved(expected):
    for engine, steps in (("fsdp", 1), ("fsdp", 3), ("ddp", 3)):
        training = Training(ENGINES[engine](), *CASES[4]).run(range(steps))
        save(training, folder() / f"{engine}-{steps}")
        training.run(range(steps, STEPS))
        assert_alike(training.outcome(), expected[CASES[4]])


@check(2)
def checkpoints_of_four_ranks_are_loaded(expected):
    losses, *rest = expected[CASES[4]]
    for engine, saved, steps in (("fsdp", "fsdp", 1), ("fsdp", "ddp", 3), ("ddp", "fsdp", 3)):
        training = Training(ENGINES[engine](), *CASES[4])
        load(training, folder() / f"{saved}-{steps}")
        training.run(range(steps, STEPS))
        assert_alike(training.outcome(), (losses[steps:], *rest))
        assert_same_bits(training)


def train_by_evidence(model, share, group=None, **attached):
    """Classes from one batch, of which each rank has a share."""
    x, y = batch(0)
    labels = y.argmax(1)
    reg = EvidenceReg(model, len(x), "classification", process_group=group)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    reg.attach(optimizer, **attached)
    rank, size = share
    for _ in range(12):
        optimizer.zero_grad()
        cross_entropy(model(x.chunk(size)[rank]), labels.chunk(size)[rank]).backward()
        optimizer.step()
    return model, reg


def alone():
    """A process group of this rank only."""
    rank, size = rank_and_size()
    return [dist.new_group([r]) for r in range(size)][rank]


@check(2, 4, cuda=True)
def evidence_is_that_of_one_process(expected):
    x, y = batch(0)
    data = {"data": (x, y.argmax(1)), "update_every": 3}
    model, reg = train_by_evidence(make_model(), (0, 1), alone(), **data)
    theirs, ours = train_by_evidence(ddp(), rank_and_size(), **data)
    assert reg.metrics()["waiting"] == 0
    assert ours.metrics() == pytest.approx(reg.metrics(), rel=1e-8)
    for one, other in zip(theirs.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    for name, prior in reg.priors.items():
        torch.testing.assert_close(
            ours.priors[name].col.dense(), prior.col.dense(), rtol=1e-8, atol=0
        )
    low = gathered(ours.correlations("5").low.tolist())
    assert all(one == low[0] for one in low)


@check(2, 4, cuda=True)
def evidence_of_what_the_first_rank_has_seen(expected):
    """Ranks see different batches and end with the same bits."""
    model, reg = train_by_evidence(ddp(), rank_and_size(), update_every=2)
    assert reg.metrics()["updates"] == 6
    factors = [f for p in reg.priors.values() for f in (*p.row.factors, *p.col.factors)]
    tensors = [*model.parameters(), *(f for f in factors if f is not None)]
    everyone = gathered([t.detach().cpu().numpy().tobytes() for t in tensors])
    assert all(one == everyone[0] for one in everyone)
    assert len({json.dumps(m) for m in gathered(reg.metrics())}) == 1


@check(2)
def evidence_that_fails_on_the_first_rank_fails_on_all(expected):
    x, y = batch(0)
    model = ddp()
    reg = EvidenceReg(model, len(x), "classification")
    before = reg.state_dict()
    with pytest.raises(RuntimeError, match=r"failed on rank 0: .*the inputs of these targets"):
        reg.update(None if dist.get_rank() == 0 else x, y.argmax(1))
    with torch.no_grad():
        next(model.parameters())[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="0 on rank 0; 0 on rank 1: the weight has NaN"):
        reg.update(x, y.argmax(1))
    assert str(reg.state_dict()) == str(before)
    with pytest.raises(NotImplementedError, match="the weight is sharded, and EvidenceReg"):
        EvidenceReg(fsdp(), 9, "classification", layers="last").update(x, y.argmax(1))


class Gone(BaseException):
    """Not caught by anyone who catches exceptions."""


@check(2, 4)
def a_rank_that_dies_in_an_update_makes_the_others_raise(expected):
    """The last check: from now on one of them is missing."""
    training = Training((ddp if dist.get_world_size() == 2 else fsdp)(), *CASES[0]).run()
    began = time.monotonic()
    if dist.get_rank() == 1:
        with dying_eigh(), pytest.raises(Gone):
            training.reg.update()
        return  # main ends the process, and with it all connections
    with pytest.raises(RuntimeError):
        training.reg.update()
    assert time.monotonic() - began < TIMEOUT / 2, "only the timeout has ended it"


@contextmanager
def dying_eigh():
    original, torch.linalg.eigh = torch.linalg.eigh, die
    try:
        yield
    finally:
        torch.linalg.eigh = original


def die(*args):
    raise Gone


def state_of(training):
    model, optimizer = get_state_dict(training.model, training.optimizer)
    return {"model": model, "optimizer": optimizer, "reg": training.reg.state_dict()}


def save(training, path):
    dcp.save(state_of(training), checkpoint_id=path)


def load(training, path):
    state = state_of(training)
    dcp.load(state, checkpoint_id=path)
    halves = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
    set_state_dict(training.model, training.optimizer, **halves)
    training.reg.load_state_dict(state["reg"])


def main():
    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    expected = {case: Training(make_model(), *case).run().outcome() for case in CASES}
    backend = "cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT))
    rank, size = rank_and_size()
    outcomes = {}
    for name in sys.argv[2:] or [name for name in CHECKS if name not in LATER]:
        ranks, cuda, function = CHECKS[name]
        if cuda if DEVICE == "cuda" else size in ranks:
            try:
                function(expected)
                outcomes[name] = "passed"
            except Exception:
                outcomes[name] = traceback.format_exc()
                break  # the other ranks are elsewhere now
    (folder() / f"{size}-{rank}.json").write_text(json.dumps(outcomes))
    sys.stdout.flush()
    os._exit(0)  # threads of gloo may outlive the interpreter and abort


if __name__ == "__main__":
    main()
