"""A network in a stack is the network trained alone."""

import gc
import math
import weakref
from collections import deque
from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn.functional import conv2d, max_pool2d
from torch.utils._python_dispatch import TorchDispatchMode

import adareg
from adareg.core import rules
from adareg.core.evidence import constants
from adareg.core.evidence.constants import Constants
from adareg.lab.run import cell
from adareg.lab.train import operations, plain_loop, stacked
from adareg.lab.train.config import Config
from adareg.lab.train.ingredients import (
    DeCov,
    Dropout,
    PaperPrior,
    Scaled,
    WeightDecay,
    augmentation,
)
from adareg.lab.train.ingredients.base import Part, StackedPart
from adareg.lab.train.ingredients.evidence_prior import StackedEvidence
from adareg.lab.train.methods import METHODS, Method
from adareg.lab.train.networks import ARCHITECTURES
from adareg.lab.train.stacked import Data, Replica, Trainer, products, stacks
from fakes.datasets import fake

# Priors are strong here, so that what they do shows.
pytestmark = pytest.mark.filterwarnings("ignore::adareg.PenaltyWarning")

EXACT = {"rtol": 1e-9, "atol": 1e-12}
#: Precisions up to v = 1e3 on both sides amplify rounding a million times.
AMPLIFIED = {"rtol": 1e-7, "atol": 2e-9}


def config_for(name, **changes):
    base = Config(data=name, n=21, batch=8, blocks=2, epochs=2, lr=2e-3, strength=1e-3)
    return replace(base, precision="float64", **changes)


def compare(source, config, replicas, device="cpu"):
    data = Data(source, config, torch.device(device), torch.float64)
    for group in stacks(replicas):
        trainer = Trainer(group, ARCHITECTURES[config.data], config, data)
        deque(trainer.run(), maxlen=0)
        for i, replica in enumerate(group):
            y = source.y_train.double() if source.task == "regression" else source.y_train
            network, reg = plain_loop.train(replica, config, source.x_train.double(), y)
            exact = EXACT if reg is None else AMPLIFIED
            if device != "cpu":  # sums in another order, and Adam divides by what is almost zero
                exact = {"rtol": 1e-6, "atol": 1000 * exact["atol"]}
            for name, parameter in network.named_parameters():
                mine = trainer.stack.parameters[name][i].cpu()
                torch.testing.assert_close(mine, parameter, **exact)
            for name, buffer in network.named_buffers():
                if "running" in name:
                    mine = trainer.stack.buffers[name][i].cpu()
                    torch.testing.assert_close(mine, buffer, **exact)
            priors = {name: prior.to("cpu") for name, prior in trainer.prior(i).items()}
            assert priors.keys() == (reg.priors.keys() if reg else set())
            for name, prior in priors.items():
                its = reg.priors[name]
                torch.testing.assert_close(prior.row.dense(), its.row.dense(), rtol=1e-6, atol=1e-6)
                torch.testing.assert_close(prior.col.dense(), its.col.dense(), rtol=1e-6, atol=1e-6)
            outputs = torch.cat([output for _, output in trainer.predict(data.x_test)], 1)
            torch.testing.assert_close(outputs[i].cpu(), network(source.x_test.double()), **exact)


@pytest.mark.parametrize("name", ["mnist", "digits"])
def test_every_method_stacked_is_the_method_alone(name):
    replicas = [Replica(method, seed) for method in METHODS for seed in (0, 3)]
    if name == "digits":
        replicas = [r for r in replicas if r.method != "adareg-conv"]
    compare(fake(name), config_for(name), replicas)


@pytest.mark.parametrize("name", ["digits", "sarcos", "mnist"])
def test_many_updates_of_learned_priors_stay_those_of_networks_alone(name, monkeypatch):
    """Thirty-six steps: updates of the evidence rule from the eighth on, two of the peer."""
    monkeypatch.setattr(constants, "DEFAULTS", Constants(first=8))
    update, updated = StackedEvidence.update, []

    def counted(self):
        updated.append(update(self))
        return updated[-1]

    monkeypatch.setattr(StackedEvidence, "update", counted)
    methods = ("evidence", "marginal-likelihood", "early-stopping")
    config = config_for(name, blocks=2, epochs=6)
    seeds = (0,) if name == "mnist" else (0, 1)
    compare(fake(name), config, [Replica(m, s) for m in methods for s in seeds])
    assert len(updated) > 2


@pytest.mark.parametrize("name", ["cifar10", "sarcos"])
def test_other_networks_too(name):
    methods = ("none", "weight-decay", "dropout", "batch-norm", "decov", "adareg")
    config = config_for(name, augment=name == "cifar10", epochs=1)
    compare(fake(name), config, [Replica(m, 1) for m in methods])


def test_each_replica_can_have_strengths_of_its_own(monkeypatch):
    own = {
        "mild": Method("mild", (WeightDecay(1e-3), DeCov(0.05), Dropout(0.3))),
        "strong": Method("strong", (WeightDecay(0.1), PaperPrior(1e-2, rule="joint"))),
        "other": Method("other", (DeCov(), Dropout(0.7), PaperPrior(rule="joint", layers="fc"))),
    }
    for name, method in own.items():
        monkeypatch.setitem(METHODS, name, method)
    compare(fake("digits"), config_for("digits"), [Replica(m, s) for m in own for s in (0, 1)])


def test_a_rule_from_outside_trains_in_a_stack(monkeypatch):
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))

    @adareg.register_rule("rows of a stack")
    def rows(W, prior, bounds):
        row = yield from adareg.solve_side(W, prior.col, W.shape[-1], bounds)
        return adareg.MatrixNormal(row, prior.col)

    monkeypatch.setitem(
        METHODS, "rows", Method("rows", (PaperPrior(rule="rows of a stack", layers="all"),))
    )
    compare(fake("digits"), config_for("digits"), [Replica("rows", s) for s in (0, 1)])


@dataclass(frozen=True)
class Sparsity(Scaled):
    """A new ingredient, all of it: the L1 norm of the last layer's weight."""

    strength: float = 1e-3

    def make_part(self, training):
        return SparsityAlone(self.strength, training.network.fc[-1].weight)

    @classmethod
    def make_stacked_part(cls, own, trainer):
        return SparsityStacked(own, trainer)


class SparsityAlone(Part):
    def __init__(self, strength, weight):
        self.strength, self.weight = strength, weight

    def loss(self, hidden):
        return self.strength * self.weight.abs().sum()


class SparsityStacked(StackedPart):
    def __init__(self, own, trainer):
        self.weight = f"{trainer.stack.last}.weight"
        self.parameters, self.members = trainer.stack.parameters, trainer.members(own)
        self.strength = Scaled.strengths(own, trainer)[self.members, None, None]

    def add_gradients(self, grads):
        signs = self.parameters[self.weight][self.members].sign()
        grads[self.weight][self.members] += self.strength * signs


def test_a_new_ingredient_is_a_class_and_a_row(monkeypatch):
    added = {
        "sparse": Method("sparse", (Sparsity(),)),
        "sparse+dropout": Method("sparse + dropout", (Sparsity(0.1), Dropout(0.2))),
    }
    for name, method in added.items():
        monkeypatch.setitem(METHODS, name, method)
    config, replicas = config_for("digits"), [Replica(m, s) for m in added for s in (0, 1)]
    compare(fake("digits"), config, replicas)
    sparse, plain = (
        plain_loop.train(Replica(m, 0), config, *double("digits"))[0]
        for m in ("sparse+dropout", "none")
    )
    assert sparse.fc[-1].weight.abs().sum() < 0.9 * plain.fc[-1].weight.abs().sum()


def double(name):
    source = fake(name)
    return source.x_train.double(), source.y_train


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["mnist", "cifar10", "digits"])
def test_a_gpus_stack_is_the_network_alone_on_a_cpu(name, monkeypatch):
    """Sixteen steps of a full batch in each block, so that most are replayed from a recording."""
    monkeypatch.setattr(constants, "DEFAULTS", Constants(first=8))
    config = config_for(name, augment=name == "cifar10", epochs=8, blocks=2)
    methods = [m for m in METHODS if name != "digits" or m != "adareg-conv"]
    compare(fake(name), config, [Replica(m, 1) for m in methods], "cuda")


def test_neighbours_in_the_table_of_methods_share_ingredients():
    """A stack of all methods works on slices; an index would cost a copy of the activations."""
    config, source = config_for("mnist"), fake("mnist")
    data = Data(source, config, torch.device("cpu"), torch.float64)
    for group in stacks([Replica(m, s) for m in METHODS for s in (0, 1)]):
        trainer = Trainer(group, ARCHITECTURES["mnist"], config, data)
        for part in trainer.parts:
            found = getattr(part, "members", None) or {"all": getattr(part, "_members", slice(0))}
            assert all(isinstance(members, slice) for members in found.values())


def test_a_gpus_convolution_and_pooling_are_torchs():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 12, 10, 2, generator=draw, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 5, 2, 3, 3, generator=draw, dtype=torch.float64, requires_grad=True)
    z = operations.max_pool(operations.toeplitz_conv(x, w))
    expected = torch.stack(
        [
            max_pool2d(conv2d(x[r].permute(0, 3, 1, 2), w[r]), 2).permute(0, 2, 3, 1)
            for r in range(3)
        ]
    )
    torch.testing.assert_close(z, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn(z.shape, generator=draw, dtype=torch.float64)
    for mine, its in zip(
        torch.autograd.grad((z * weights).sum(), (x, w)),
        torch.autograd.grad((expected * weights).sum(), (x, w)),
        strict=True,
    ):
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_pooling_kernels_are_torchs(dtype):
    draw = torch.Generator().manual_seed(0)
    z = torch.randint(3, (2, 3, 8, 6, 5), generator=draw).to("cuda", dtype).requires_grad_()
    mine = operations.max_pool(z)
    its = max_pool2d(z.flatten(0, 1).permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1).view_as(mine)
    assert torch.equal(mine, its)
    weights = torch.randn(mine.shape, generator=draw).to("cuda", dtype)
    grads = [torch.autograd.grad((pooled * weights).sum(), z)[0] for pooled in (mine, its)]
    assert torch.equal(*grads)


def test_pooling_prefers_the_corner_that_torch_prefers():
    z = torch.zeros(1, 1, 4, 4, 1, dtype=torch.float64, requires_grad=True)
    (mine,) = torch.autograd.grad(operations.max_pool(z).sum(), z)
    flat = torch.zeros(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    (its,) = torch.autograd.grad(max_pool2d(flat, 2).sum(), flat)
    assert torch.equal(mine.squeeze(), its.squeeze())


def no_memory_while_recording():
    """What is left of it when the end of a CUDA graph's recording fails too."""
    try:
        raise torch.OutOfMemoryError("CUDA out of memory")
    except torch.OutOfMemoryError:
        raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904


def no_memory_on_a_cpu():
    raise RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"
    )


def no_memory_on_a_gpu():
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    "fail", [no_memory_on_a_gpu, no_memory_on_a_cpu, no_memory_while_recording]
)
def test_out_of_memory_splits_the_stack_and_gives_the_same(fail, monkeypatch):
    source, config = fake("digits"), config_for("digits")
    replicas = [Replica(m, s) for m in ("adareg", "none") for s in range(3)]
    device = torch.device("cpu")
    whole = cell.run(config, replicas, source, device)
    sizes, told = [], []
    forward = stacked.Trainer.__init__

    def cramped(self, group, *args):
        sizes.append(len(group))
        if len(group) > 2:
            fail()
        forward(self, group, *args)

    monkeypatch.setattr(stacked.Trainer, "__init__", cramped)
    parts = cell.run(config, replicas, source, device, told.append)
    assert max(sizes) == 6
    assert sizes.count(6) == 1
    assert [part.replica for part in parts] == stacks(replicas)[0]
    for part, one in zip(parts, whole, strict=True):
        assert part.metrics["test_loss"] == pytest.approx(one.metrics["test_loss"], rel=1e-6)
    assert sum(told) == len(replicas) * config.n * config.blocks * config.epochs


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor had that was made."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            size = made.untyped_storage().nbytes() // made.element_size()
            self.numbers = max(self.numbers, size)
        return made


def test_an_evaluation_needs_no_more_memory_for_more_samples(monkeypatch):
    monkeypatch.setitem(stacked._EVALUATE, "cpu", 16)
    needed = []
    for n in (20, 80):
        source, config = fake("mnist", n_train=80), config_for("mnist", n=n)
        data = Data(source, config, torch.device("cpu"), torch.float64)
        replicas = [Replica("none", seed) for seed in (0, 1)]
        trainer = Trainer(replicas, ARCHITECTURES["mnist"], config, data)
        with Largest() as largest:
            losses = cell._losses(trainer)
        needed.append(largest.numbers)
        with torch.no_grad():
            output = trainer.stack.forward(data.x[trainer.subset])[-1]
        whole = data.loss(output, data.y[trainer.subset]).mean(1)
        torch.testing.assert_close(losses["train_loss"], whole)
    assert needed[0] == needed[1]


def test_a_stack_that_was_too_large_is_gone_before_its_halves_are_made(monkeypatch):
    source, config, device = fake("digits"), config_for("digits"), torch.device("cpu")
    start, epoch, lost = stacked.Trainer.__init__, stacked.Trainer.epoch, []

    def observed(self, *args):
        assert not any(trainer() is not None for trainer in lost)
        start(self, *args)
        self.itself = self  # a cycle, as torch makes one of a process's first optimizer

    def cramped(self, *args):
        if len(self.replicas) > 1:
            lost.append(weakref.ref(self))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return epoch(self, *args)

    monkeypatch.setattr(stacked.Trainer, "__init__", observed)
    monkeypatch.setattr(stacked.Trainer, "epoch", cramped)
    gc.disable()
    try:
        cell.run(config, [Replica("none", seed) for seed in range(2)], source, device)
    finally:
        gc.enable()
    assert len(lost) == 1


def test_one_network_too_large_and_other_errors_are_errors(monkeypatch):
    def fail(*args):
        raise error

    monkeypatch.setattr(stacked.Trainer, "epoch", fail)
    arguments = (config_for("digits"), [Replica("none", 0)], fake("digits"), torch.device("cpu"))
    error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(MemoryError, match="n21-b8: not even one network fits"):
        cell.run(*arguments)
    error = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        cell.run(*arguments)


def test_a_network_that_diverges_does_not_take_the_others_along(monkeypatch):
    monkeypatch.setattr(constants, "DEFAULTS", Constants(first=4))
    source, config = fake("digits"), config_for("digits")
    replicas = [Replica(m, 0) for m in ("none", "marginal-likelihood", "weight-decay", "adareg")]
    replicas += [Replica("evidence", seed) for seed in (0, 1)]
    undisturbed = cell.run(config, replicas, source, torch.device("cpu"))
    start = stacked.Trainer.__init__

    def spoiled(self, *args):
        start(self, *args)
        with torch.no_grad():
            for parameter in self.stack.parameters.values():
                parameter[[0, 1, 3, 4]] = torch.nan

    monkeypatch.setattr(stacked.Trainer, "__init__", spoiled)
    *four, evidence, other = cell.run(config, replicas, source, torch.device("cpu"))
    none, peer, decayed, adareg = four
    assert decayed == undisturbed[2]
    assert other.metrics["test_loss"] == pytest.approx(undisturbed[5].metrics["test_loss"])
    for lost in (none, peer, adareg, evidence):
        assert lost.metrics["diverged"]
        assert math.isnan(lost.metrics["test_loss"])
        assert all(map(math.isnan, lost.arrays["singular_values"]))


def test_the_same_seed_gives_the_same_numbers_to_the_last_bit():
    source, config = fake("digits"), config_for("digits")
    replicas = [Replica(m, 1) for m in ("dropout", "adareg", "batch-norm")]
    first, second = (cell.run(config, replicas, source, torch.device("cpu")) for _ in range(2))
    assert [a.metrics for a in first] == [b.metrics for b in second]
    assert [a.arrays for a in first] == [b.arrays for b in second]


def test_training_leaves_the_global_random_state_and_precision_alone():
    state, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    with products("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    cell.run(config_for("digits"), [Replica("dropout", 0)], fake("digits"), torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_float32_matmul_precision() == precision


def test_crops_and_flips_are_shifted_copies():
    """Every image is one of the 81 shifts of its original, flipped or not; all of them occur."""
    images = torch.arange(1.0, 2 * 6 * 5 * 2 + 1).view(2, 6, 5, 2)
    padded = augmentation.pad_images(images)
    samples = torch.arange(2).repeat(3, 400)
    batch = augmentation.crop_and_flip(padded, samples, torch.tensor([4, 5, 4]), torch.tensor(9))
    assert torch.equal(batch[0], batch[2])
    assert not torch.equal(batch[0], batch[1])
    seen = set()
    for image, sample in zip(batch[0], samples[0], strict=True):
        found = [
            (down, right, flipped)
            for down in range(9)
            for right in range(9)
            for flipped in (False, True)
            for crop in [padded[sample, down : down + 6, right : right + 5]]
            if torch.equal(image, crop.flip(1) if flipped else crop)
        ]
        assert found
        seen.update(found[:1])
    assert len({(down, right) for down, right, _ in seen}) > 75
    assert {flipped for *_, flipped in seen} == {False, True}
