"""Training on several ranks, by whatever engine, is training on one."""

import torch
import torch.distributed as dist
from harness import CASES, ENGINES, assert_same_bits, check, ddp, fsdp, raises
from jobs import DEVICE, Training, assert_alike, make_model, make_reg
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import adareg
from adareg import AdaReg
from adareg.core.linalg import whole


def in_each(engine, case):
    def run(expected):
        training = Training(ENGINES[engine](), *case).run()
        assert_alike(training.outcome(), expected[case])
        assert_same_bits(training)

    ranks = [4] if engine == "fsdp each layer" else [1, 2, 4]
    check(*ranks, name=f"{engine} {case}", cuda=True)(run)


for engine in ("ddp", "fsdp"):
    for case in CASES:
        in_each(engine, case)
in_each("fsdp each layer", CASES[3])


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
