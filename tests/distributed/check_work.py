"""Which rank does what, and how much they tell each other."""

import torch
import torch.distributed as dist
from harness import alone_group, check, gathered, raises, watched_eigh
from jobs import DEVICE, assert_alike, make_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from adareg import AdaReg
from adareg.bench.distributed import Head
from adareg.nn.distributed import cost, owners


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
