"""Trainings with the Trainer of Transformers, and the same written out."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from transformers import Trainer, TrainingArguments

from adareg import AdaReg, EvidenceReg
from training import make_data, make_model

MARKS = [
    pytest.mark.usefixtures("one_thread"),
    # Priors are strong here, so that what they do shows.
    pytest.mark.filterwarnings("ignore::adareg.PenaltyWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),
]
N, BATCH = 24, 4
STRONG = {"strength": 0.05, "bounds": (0.1, 10)}


class Classifier(nn.Module):
    """A model as the Trainer wants it, which remembers the batches it was given."""

    def __init__(self, dtype=torch.float64, loss=cross_entropy):
        super().__init__()
        self.model = make_model(dtype)
        self.loss = loss
        self.batches = []

    def forward(self, x, labels):
        if self.training:
            self.batches.append((x, labels))
        logits = self.model(x)
        return {"loss": self.loss(logits, labels), "logits": logits}


def dataset(dtype=torch.float64, targets=None):
    x, y = make_data(N, dtype)
    y = y if targets is None else targets
    return [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]


def make_trainer(path, model, callbacks, epochs=4, optimizer=SGD, data=None, **options):
    defaults = {
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": epochs,
    }
    arguments = TrainingArguments(output_dir=str(path), **{**defaults, **options})
    optimizers = optimizer(model.parameters(), lr=0.05) if optimizer else None, None
    data = dataset() if data is None else data
    return Trainer(model, arguments, train_dataset=data, callbacks=callbacks, optimizers=optimizers)


def plain(
    batches,
    mode="coupled",
    accumulate=1,
    clip=None,
    every=None,
    optimizer=SGD,
    loss=cross_entropy,
    data=None,
    **settings,
):
    """The same training on the same batches, written out."""
    model = Classifier(loss=loss)
    optimizer = optimizer(model.parameters(), lr=0.05)
    learning = "likelihood" in settings
    if learning:
        reg = EvidenceReg(model, **settings)
        reg.attach(optimizer, mode, every, data)
    else:
        reg = AdaReg(model, **{**STRONG, **settings})
        reg.attach(optimizer, mode, every)
    per_epoch = N // BATCH
    for i, (x, labels) in enumerate(batches):
        (model(x=x, labels=labels)["loss"] / accumulate).backward()
        if (i + 1) % accumulate == 0:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        if (i + 1) % per_epoch == 0 and every is None and not learning:
            reg.update()
    return model
