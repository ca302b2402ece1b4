"""What all checks share: a list of them, the engines, and what is the same on every rank."""

import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jobs import fingerprints, make_model, rank_and_size
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

#: How the penalty gets in, the rule, parts of a batch, what is computed first.
CASES = [
    ("coupled", "joint", 1, "loss"),
    ("proximal", "alternating", 1, "loss"),
    ("loss", "official", 1, "loss"),
    ("loss", "joint", 2, "penalty"),
    ("coupled", "alternating", 2, "loss"),
    ("proximal", "rows of jobs", 1, "loss"),
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


def assert_same_bits(training):
    everyone = gathered(fingerprints(training))
    assert len(set(everyone)) == 1, everyone


def gathered(message):
    everyone = [None] * rank_and_size()[1]
    dist.all_gather_object(everyone, message)
    return everyone


def raises(kind, *texts):
    """With all these texts in the message."""
    return pytest.raises(kind, match="".join(f"(?=.*{re.escape(text)})" for text in texts))


def alone_group():
    """A group of this rank only; all ranks make all of them."""
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]


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
