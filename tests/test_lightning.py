"""The Lightning callback trains as the plain loop does, and resumes as if never broken off."""

import csv
import logging
import runpy
import sys
from pathlib import Path

import lightning
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from adareg import AdaReg
from adareg.lightning import AdaRegCallback
from training import DEVICES, assert_close, assert_equal, make_data, make_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '\\w+_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]
ROOT = Path(__file__).parents[1]
BATCH, N = 8, 48
STRONG = {"strength": 0.05, "bounds": (0.1, 10)}


@pytest.fixture(autouse=True)
def _quiet(caplog):
    for name in ("lightning", "pytorch_lightning"):
        caplog.set_level(logging.ERROR, logger=f"{name}.pytorch")


@pytest.fixture(autouse=True)
def _one_thread():
    """The networks are so small that a second thread only gets in the way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def module(base=lightning.LightningModule, dtype=torch.float64, optimizer=SGD, lr=0.1):
    class Classifier(base):
        def __init__(self):
            super().__init__()
            self.model = make_model(dtype)

        def training_step(self, batch, _):
            x, y = batch
            loss = cross_entropy(self.model(x), y)
            self.log("loss", loss)
            return loss

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


def plain(mode="coupled", epochs=4, accumulate=1, clip=None, every=None, optimizer=SGD, **settings):
    """The same training, written out."""
    model = nn.ModuleDict({"model": make_model(torch.float64)})
    adam = optimizer(model.parameters(), lr=0.1)
    reg = AdaReg(model, **{**STRONG, **settings})
    reg.attach(adam, mode, update_every=every)
    for _ in range(epochs):
        for i, (x, y) in enumerate(Batches()):
            (cross_entropy(model["model"](x), y) / accumulate).backward()
            if (i + 1) % accumulate == 0:
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                adam.step()
                adam.zero_grad()
        if every is None:
            reg.update()
    return model


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("every", [{}, {"every_n_steps": 5}])
@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_trains_as_the_plain_loop_does(mode, every, optimizer):
    model = module(optimizer=optimizer)
    fit(model, [AdaRegCallback(**STRONG, mode=mode, **every)])
    assert_equal(model, plain(mode, every=every.get("every_n_steps"), optimizer=optimizer))


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
def test_accumulates_and_clips_as_the_plain_loop_does(mode):
    model = module()
    options = {"accumulate_grad_batches": 3, "gradient_clip_val": 0.05}
    fit(model, [AdaRegCallback(**STRONG, mode=mode)], **options)
    assert_close(model, plain(mode, accumulate=3, clip=0.05), rtol=1e-12, atol=1e-13)
    unclipped = plain(mode, accumulate=3)
    assert not torch.allclose(model.model[2].weight, unclipped["model"][2].weight, atol=1e-4)


def test_pytorch_lightning_trainer_takes_it():
    model = module(pytorch_lightning.LightningModule)
    fit(model, [AdaRegCallback(**STRONG)], package=pytorch_lightning)
    assert_equal(model, plain())


def test_every_n_epochs_and_layers_by_name():
    model, callback = module(), AdaRegCallback("model.0", **STRONG, every_n_epochs=3)
    fit(model, [callback], epochs=5)
    assert list(callback.regularizer.layers) == ["model.0"]
    reference = nn.ModuleDict({"model": make_model(torch.float64)})
    sgd, reg = SGD(reference.parameters(), 0.1), AdaReg(reference, "model.0", **STRONG)
    reg.attach(sgd)
    for epoch in range(5):
        for x, y in Batches():
            sgd.zero_grad()
            cross_entropy(reference["model"](x), y).backward()
            sgd.step()
        if epoch == 2:
            reg.update()
    assert_equal(model, reference)


class Validated(lightning.LightningModule):
    def validation_step(self, batch, _):
        self.log("val_loss", cross_entropy(self.model(batch[0]), batch[1]))


CHECKPOINTS = {
    "at the end of an epoch": {"every_n_epochs": 1, "save_on_train_epoch_end": True},
    "after validation": {"every_n_epochs": 1, "save_on_train_epoch_end": False},
    "in mid-epoch": {"every_n_train_steps": 16},
    "after an epoch's last step": {"every_n_train_steps": 12},
}


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")
@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("every", [{"every_n_epochs": 2}, {"every_n_steps": 5}])
@pytest.mark.parametrize("when", CHECKPOINTS)
def test_resumes_as_if_never_broken_off(when, every, mode, tmp_path):
    settings = {**STRONG, **every, "mode": mode}
    saver = ModelCheckpoint(tmp_path, save_top_k=-1, **CHECKPOINTS[when])
    validation = Batches() if when == "after validation" else None
    base = Validated if validation else lightning.LightningModule
    whole, callback = module(base, optimizer=Adam, lr=0.01), AdaRegCallback(**settings)
    fit(whole, [callback, saver], epochs=6, validation=validation)
    checkpoints = sorted(tmp_path.glob("*.ckpt"), key=lambda p: int(p.stem.split("step=")[1]))
    middle = checkpoints[len(checkpoints) // 2 - 1]
    state = torch.load(middle, weights_only=True)
    assert 0 < state["global_step"] < 36
    assert "AdaRegCallback{'prefix': 'adareg/'}" in state["callbacks"]

    resumed, again = module(base, optimizer=Adam, lr=0.01), AdaRegCallback(**settings)
    fit(resumed, [again], epochs=6, validation=validation, ckpt_path=middle)
    assert_equal(resumed, whole)
    assert again.regularizer.metrics() == callback.regularizer.metrics()


def test_a_second_fit_goes_on_and_a_new_trainer_starts_anew():
    model, callback = module(), AdaRegCallback(**STRONG)
    trainer = fit(model, [callback], epochs=2)
    first = callback.regularizer
    trainer.fit_loop.max_epochs = 4
    trainer.fit(model, Batches())
    assert callback.regularizer is first
    assert_equal(model, plain())
    fit(model, [callback], epochs=1)
    assert callback.regularizer is not first


def test_learning_rate_finder_leaves_no_trace():
    from lightning.pytorch.tuner import Tuner

    model, callback = module(), AdaRegCallback(**STRONG)
    model.lr = 0.1
    trainer = lightning.Trainer(
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=4,
    )
    tuner = Tuner(trainer)
    tuner.lr_find(model, Batches(), num_training=5, update_attr=False)
    trainer.fit(model, Batches())
    assert_equal(model, plain())


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


@pytest.mark.parametrize("optimizer", [None, 0, "SGD"])
def test_manual_optimization_with_several_optimizers(optimizer):
    model, plain_second = Gan(), Gan()
    fit(plain_second, [])
    fit(model, [AdaRegCallback("first.2", **STRONG, optimizer=optimizer)])
    assert_equal(model.first, plain()["model"])
    assert_equal(model.second, plain_second.second)


def test_one_callback_for_each_optimizer():
    callbacks = [AdaRegCallback(n, **STRONG, prefix=f"{n}/") for n in ("first", "second")]
    model = Gan()
    trainer = fit(model, callbacks)
    assert_equal(model.first, plain(layers="all")["model"])
    assert {"first/penalty", "second/second.2/stable_rank"} <= trainer.callback_metrics.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": "all"}, "no optimizer holds the weights of first.0.*0 .SGD., 1 .Adam."),
        ({"optimizer": 2}, "optimizer=2: none of the optimizers 0 .SGD., 1 .Adam. fits"),
        ({"optimizer": "LBFGS"}, "optimizer='LBFGS': none of"),
        ({"optimizer": 0}, "second.2: the optimizer does not hold this layer's weight"),
    ],
)
def test_a_wrong_choice_of_optimizer_names_the_others(settings, message):
    with pytest.raises(ValueError, match=message):
        fit(Gan(), [AdaRegCallback(**settings)])


def test_two_optimizers_of_the_same_weights_are_ambiguous():
    class Twice(Gan):
        def configure_optimizers(self):
            return SGD(self.parameters(), lr=0.1), SGD(self.parameters(), lr=0.1)

    with pytest.raises(ValueError, match="more than one of the optimizers 0 .SGD., 1 .SGD. fits"):
        fit(Twice(), [AdaRegCallback()])
    fit(Twice(), [AdaRegCallback(optimizer=1)], epochs=1)


def precision_options(precision, device):
    """A gradient scaler on CPU has to be asked for explicitly."""
    if (precision, device) != ("16-mixed", "cpu"):
        return {"precision": precision}
    return {"plugins": [MixedPrecision(precision, device, torch.amp.GradScaler(device))]}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-mixed"])
def test_lower_precision_trains(precision, mode, device):
    callback = AdaRegCallback(**STRONG, mode=mode, every_n_steps=4)
    model = module(dtype=torch.float32)
    x, y = make_data(N)
    before = cross_entropy(model.model(x), y)
    options = {"accelerator": device.replace("cuda", "gpu"), "devices": 1}
    options |= precision_options(precision, device)
    fit(model, [callback], epochs=8, loader=Batches(torch.float32), **options)
    after = cross_entropy(model.float().cpu().model(x), y)
    assert after < 0.9 * before
    assert 40 < callback.regularizer._steps <= 48  # but for the first steps, which may overflow
    assert callback.regularizer.metrics()["penalty"] > 0


def test_auto_strength_takes_the_length_of_the_data():
    callback = AdaRegCallback(strength="auto")
    fit(module(), [callback], epochs=1)
    assert callback.regularizer.strength == 1 / (2 * N)


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*make_data(N, torch.float64), strict=True)


def test_auto_strength_of_a_stream_needs_its_length():
    loader = DataLoader(Stream(), batch_size=BATCH)
    with pytest.raises(ValueError, match="give it as n_samples"):
        fit(module(), [AdaRegCallback(strength="auto")], loader=loader)
    callback = AdaRegCallback(strength="auto", n_samples=100)
    fit(module(), [callback], epochs=1, loader=loader)
    assert callback.regularizer.strength == 1 / 200


def test_logs_to_csv(tmp_path):
    callback = AdaRegCallback(**STRONG, every_n_epochs=2)
    logger = CSVLogger(tmp_path, name="", version="run")
    trainer = fit(module(), [callback], logger=logger, log_every_n_steps=3)
    rows = list(csv.DictReader((tmp_path / "run/metrics.csv").read_text().splitlines()))
    logged = [row for row in rows if row["adareg/penalty"]]
    assert len(logged) == 4
    expected = {f"adareg/{k}": v for k, v in callback.regularizer.metrics().items()}
    assert {k for k in logged[0] if k.startswith("adareg/")} == expected.keys()
    for key, value in expected.items():
        assert float(logged[-1][key]) == pytest.approx(value, rel=1e-6)
    assert trainer.callback_metrics["adareg/penalty"] > 0


def test_logs_to_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, name="", version="run")
    fit(module(), [AdaRegCallback(**STRONG)], logger=logger, log_every_n_steps=3)
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert len(events.Scalars("adareg/model.2/stable_rank")) == 4


def test_logs_nothing_when_told():
    trainer = fit(module(), [AdaRegCallback(log=False)], epochs=1)
    assert not any(name.startswith("adareg") for name in trainer.callback_metrics)


def test_the_optimizer_is_left_when_training_ends_or_fails():
    class Failing(Gan):
        def training_step(self, batch, _):
            raise KeyError("user's own mistake")

    model, callback = Failing(), AdaRegCallback("first.2")
    with pytest.raises(KeyError, match="own mistake"):
        fit(model, [callback])
    assert not callback.regularizer._attachment.active
    callback = AdaRegCallback()
    fit(module(), [callback], epochs=1)
    assert not callback.regularizer._attachment.active


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": 0}, "strength=0"),
        ({"bounds": (1, 0.5)}, "bounds"),
        ({"rule": "best"}, "rule='best'"),
        ({"mode": "both"}, "mode='both': expected one of 'coupled', 'proximal'"),
        ({"every_n_steps": 0}, "every_n_steps=0"),
        ({"every_n_epochs": 1, "every_n_steps": 1}, "give one of the two"),
        ({"n_samples": 5}, "n_samples=5"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        AdaRegCallback(**settings)


def test_the_regularizer_is_not_there_before_training():
    with pytest.raises(RuntimeError, match="call fit first"):
        _ = AdaRegCallback().regularizer


def test_another_selection_of_layers_does_not_load(tmp_path):
    fit(module(), [AdaRegCallback(**STRONG)], epochs=1).save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="the state is for layers .'model.2'."):
        fit(module(), [AdaRegCallback("all", **STRONG)], epochs=2, ckpt_path=tmp_path / "a.ckpt")


def test_a_sharded_weight_is_refused():
    model = module()
    model.model[2].weight.device_mesh = "two processes"  # what tells a DTensor
    with pytest.raises(ValueError, match="model.2: the weight is sharded over processes"):
        fit(model, [AdaRegCallback()])


def test_the_example_prints_its_table(monkeypatch, capsys):
    arguments = ["--size", "40", "--epochs", "2", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["lightning_digits.py", *arguments])
    runpy.run_path(str(ROOT / "examples/lightning_digits.py"), run_name="__main__")
    rows = [line for line in capsys.readouterr().out.splitlines() if "±" in line]
    assert len(rows) == 5  # the title and four methods
    assert all(row.count("±") == 4 for row in rows[1:])
