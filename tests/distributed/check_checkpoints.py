"""Checkpoints are saved by four ranks, and loaded by two or by one."""

import torch.distributed.checkpoint as dcp
from harness import CASES, ENGINES, assert_same_bits, check, folder
from jobs import STEPS, Training, assert_alike
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


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
