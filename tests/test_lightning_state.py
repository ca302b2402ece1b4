"""The Lightning callback resumes as if never broken off, logs, and leaves when it ends."""

import csv

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.tuner import Tuner
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.optim import Adam

from adareg.lightning import AdaRegCallback
from lightning_training import MARKS, STRONG, Batches, Gan, Validated, fit, module, plain
from training import assert_equal

pytestmark = MARKS


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


def test_the_regularizer_is_not_there_before_training():
    with pytest.raises(RuntimeError, match="call fit first"):
        _ = AdaRegCallback().regularizer


def test_another_selection_of_layers_does_not_load(tmp_path):
    fit(module(), [AdaRegCallback(**STRONG)], epochs=1).save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="the state is for layers .'model.2'."):
        fit(module(), [AdaRegCallback("all", **STRONG)], epochs=2, ckpt_path=tmp_path / "a.ckpt")


def test_a_tested_checkpoint_does_not_reach_the_next_training(tmp_path):
    other = AdaRegCallback(strength=0.5, rule="joint")
    fit(module(), [other], epochs=1).save_checkpoint(tmp_path / "a.ckpt")
    model, callback = module(), AdaRegCallback(**STRONG)
    trainer = lightning.Trainer(
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.validate(module(Validated), Batches(), ckpt_path=tmp_path / "a.ckpt", verbose=False)
    fit(model, [callback])
    assert callback.regularizer.strength == STRONG["strength"]
    assert_equal(model, plain())


def test_a_checkpoint_without_its_state_is_told(tmp_path):
    fit(module(), [], epochs=1).save_checkpoint(tmp_path / "a.ckpt")
    with pytest.warns(UserWarning, match="prefix='adareg/'; its prior starts anew"):
        fit(module(), [AdaRegCallback(**STRONG)], epochs=2, ckpt_path=tmp_path / "a.ckpt")
