"""Trainings with Lightning, and the same written out."""

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.utils.data import TensorDataset

from adareg import AdaReg, EvidenceReg
from training import make_data, make_model

MARKS = [
    pytest.mark.usefixtures("one_thread"),
    # Priors are strong here, so that what they do shows.
    pytest.mark.filterwarnings("ignore::adareg.PenaltyWarning"),
    pytest.mark.filterwarnings("ignore:The '\\w+_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]
BATCH, N = 8, 48
STRONG = {"strength": 0.05, "bounds": (0.1, 10)}


class Batches:
    """The same batches every epoch, that can be saved and resumed in mid-epoch."""

    def __init__(self, dtype=torch.float64):
        self.dataset = TensorDataset(*make_data(N, dtype))
        self.position = 0

    def __len__(self):
        return N // BATCH

    def __iter__(self):
        start, self.position = self.position, 0
        x, y = self.dataset.tensors
        for i in range(start, len(self)):
            self.position = (i + 1) % len(self)
            yield x[i * BATCH : (i + 1) * BATCH], y[i * BATCH : (i + 1) * BATCH]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Network(nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.model = make_model(dtype)

    def forward(self, x):
        return self.model(x)


def module(
    base=lightning.LightningModule, dtype=torch.float64, optimizer=SGD, lr=0.1, loss=cross_entropy
):
    class Classifier(base):
        def __init__(self):
            super().__init__()
            self.model = make_model(dtype)

        def forward(self, x):
            return self.model(x)

        def training_step(self, batch, _):
            x, y = batch
            value = loss(self(x), y)
            self.log("loss", value)
            return value

        def configure_optimizers(self):
            return optimizer(self.parameters(), lr=lr)

    return Classifier()


def fit(model, callbacks, epochs=4, ckpt_path=None, loader=None, package=lightning, **options):
    defaults = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": epochs,
    }
    validation = options.pop("validation", None)
    trainer = package.Trainer(callbacks=callbacks, **{**defaults, **options})
    trainer.fit(model, Batches() if loader is None else loader, validation, ckpt_path=ckpt_path)
    return trainer


def plain(
    mode="coupled",
    epochs=4,
    accumulate=1,
    clip=None,
    every=None,
    optimizer=SGD,
    loss=cross_entropy,
    data=None,
    **settings,
):
    """The same training, written out."""
    model = Network()
    adam = optimizer(model.parameters(), lr=0.1)
    learning = "likelihood" in settings
    if learning:
        reg = EvidenceReg(model, **settings)
        reg.attach(adam, mode, every, data)
    else:
        reg = AdaReg(model, **{**STRONG, **settings})
        reg.attach(adam, mode, every)
    for _ in range(epochs):
        for i, (x, y) in enumerate(Batches()):
            (loss(model(x), y) / accumulate).backward()
            if (i + 1) % accumulate == 0:
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                adam.step()
                adam.zero_grad()
        if every is None and not learning:
            reg.update()
    return model


class Validated(lightning.LightningModule):
    def validation_step(self, batch, _):
        self.log("val_loss", cross_entropy(self.model(batch[0]), batch[1]))


class Gan(lightning.LightningModule):
    """Two networks, two optimizers, stepped by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = make_model(torch.float64), make_model(torch.float64, seed=3)

    def training_step(self, batch, _):
        x, y = batch
        for model, optimizer in zip((self.first, self.second), self.optimizers(), strict=True):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(cross_entropy(model(x), y))
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        return SGD(self.first.parameters(), lr=0.1), Adam(self.second.parameters(), lr=0.01)
