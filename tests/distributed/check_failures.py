"""What goes wrong on one rank is told on all; the last check ends one of them."""

import time
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from harness import CASES, TIMEOUT, assert_same_bits, check, ddp, fsdp, raises, watched_eigh
from jobs import STEPS, Training, fingerprints, make_model

from adareg import AdaReg, NonFiniteError
from adareg.core import linalg, shards
from adareg.core.linalg import local
from adareg.nn import distributed


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
