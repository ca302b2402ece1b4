"""The Lightning callback that learns from the data: the plain loop's training, data, errors."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy, mse_loss, one_hot
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from adareg.core.evidence import constants
from adareg.core.evidence.constants import Constants
from adareg.lightning import AdaRegCallback, EvidenceCallback
from lightning_training import BATCH, MARKS, Gan, N, fit, module, plain
from training import assert_close, assert_equal, make_data, make_model

pytestmark = [
    *MARKS,
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks"),
]
EVIDENCE = {"likelihood": "classification"}


def squared(outputs, labels):
    return mse_loss(outputs, one_hot(labels, 5).to(outputs))


def pairs():
    """The training set of a regression."""
    x, y = make_data(N, torch.float64)
    return x, one_hot(y, 5).to(x)


CASES = {
    "classification": (cross_entropy, {}),
    "regression": (squared, {"likelihood": "regression", "data": pairs()}),
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Updates after steps 5, 7, 10, 13, 17 and 23."""
    monkeypatch.setattr(constants, "DEFAULTS", Constants(first=5))


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("part", [None, "model"])
@pytest.mark.parametrize("case", CASES)
def test_trains_as_the_plain_loop_does(case, part, mode):
    loss, settings = CASES[case]
    model = module(loss=loss)
    callback = EvidenceCallback(**EVIDENCE | settings, model=part, mode=mode)
    fit(model, [callback])
    assert_equal(model, plain(mode, loss=loss, n_samples=N, **EVIDENCE | settings))
    prefix = "" if part else "model."
    assert list(callback.regularizer.layers) == [f"{prefix}0", f"{prefix}2"]
    assert callback.regularizer.metrics()["updates"] == 6


def test_learned_dropout_is_passed_on_and_gone_afterwards():
    model, callback = module(), EvidenceCallback(**EVIDENCE, dropout="learned")
    fit(model, [callback])
    assert callback.regularizer.metrics()["model.0/dropout"] > 0
    assert not any(part._forward_pre_hooks for part in model.modules())
    with pytest.raises(ValueError, match="learned"):
        EvidenceCallback(**EVIDENCE, dropout=0.5)


@pytest.mark.parametrize("every", [{"every_n_steps": 12}, {"every_n_epochs": 2}])
def test_updates_when_told(every):
    model, callback = module(), EvidenceCallback(**EVIDENCE, **every)
    fit(model, [callback])
    assert_equal(model, plain(every=12, n_samples=N, **EVIDENCE))
    assert callback.regularizer.metrics()["updates"] == 2


def test_accumulates_and_clips_as_the_plain_loop_does():
    model, callback = module(), EvidenceCallback(**EVIDENCE)
    fit(model, [callback], accumulate_grad_batches=3, gradient_clip_val=0.05)
    reference = plain(accumulate=3, clip=0.05, n_samples=N, **EVIDENCE)
    assert_close(model, reference, rtol=1e-12, atol=1e-13)
    assert callback.regularizer.metrics()["updates"] == 2  # of 8 steps
    labels = callback.regularizer._source.batch()[1]
    assert torch.equal(labels, make_data(N)[1])


def test_a_loader_with_what_a_loss_is_made_of():
    loader = DataLoader(TensorDataset(*make_data(N, torch.float64)), BATCH)
    settings = {**EVIDENCE, "data": loader, "loss_scale": 2.0, "n_samples": 100}
    model = module(loss=lambda *pair: 2 * cross_entropy(*pair))
    callback = EvidenceCallback(**settings)
    fit(model, [callback])
    reg = callback.regularizer
    assert reg.strength == pytest.approx(2 * reg.metrics()["noise"] / (2 * 100))
    assert_equal(model, plain(loss=lambda *pair: 2 * cross_entropy(*pair), **settings))


RESUMED = {  # settings, and the step at which a checkpoint is written
    "data at hand": ({"data": make_data(N, torch.float64)}, 12),
    "data at hand, the last step of an epoch": (
        {"data": make_data(N, torch.float64), "every_n_epochs": 1},
        12,
    ),
    "enough batches before the next update": ({"every_n_steps": 10}, 13),
}


@pytest.mark.parametrize("case", RESUMED)
def test_resumes_as_if_never_broken_off(case, tmp_path):
    settings, step = RESUMED[case]
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=step, save_top_k=-1)
    whole, callback = module(), EvidenceCallback(**EVIDENCE | settings)
    fit(whole, [callback, saver])
    (checkpoint,) = tmp_path.glob(f"*step={step}.ckpt")
    resumed, again = module(), EvidenceCallback(**EVIDENCE | settings)
    fit(resumed, [again], ckpt_path=checkpoint)
    assert_equal(resumed, whole)
    assert again.regularizer.metrics() == callback.regularizer.metrics()


def test_an_update_whose_batches_are_gone_is_told(tmp_path):
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=12, save_top_k=-1)
    fit(module(), [EvidenceCallback(**EVIDENCE, every_n_epochs=1), saver])
    (checkpoint,) = tmp_path.glob("*step=12.ckpt")
    again = EvidenceCallback(**EVIDENCE, every_n_epochs=1)
    with pytest.warns(UserWarning, match="before the update after epoch 2, which is left out"):
        fit(module(), [again], ckpt_path=checkpoint)
    assert again.regularizer.metrics()["updates"] == 3


def test_a_checkpoint_of_the_other_callback_is_told(tmp_path):
    fit(module(), [AdaRegCallback()], 1).save_checkpoint(tmp_path / "a.ckpt")
    with pytest.warns(UserWarning, match="no state of an EvidenceCallback"):
        fit(module(), [EvidenceCallback(**EVIDENCE)], 2, ckpt_path=tmp_path / "a.ckpt")


def test_a_checkpoint_of_another_likelihood_does_not_load(tmp_path):
    before = EvidenceCallback("regression", data=pairs())
    fit(module(loss=squared), [before], 1).save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="for likelihood='regression', this one has 'classif"):
        fit(module(), [EvidenceCallback(**EVIDENCE)], 2, ckpt_path=tmp_path / "a.ckpt")


def test_logs_what_was_found():
    trainer = fit(module(), [EvidenceCallback(**EVIDENCE)])
    names = {"gamma", "noise", "log_evidence", "model.0/scale", "model.2/gamma"}
    assert {f"adareg/{name}" for name in names} <= trainer.callback_metrics.keys()
    assert not any("clipped" in name for name in trainer.callback_metrics)


class Unused(Gan):
    """A forward pass that training has no use for."""

    def forward(self, x):
        return self.second(x)

    def configure_optimizers(self):
        return SGD(self.first.parameters(), lr=0.1), SGD(self.second.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("make", "settings", "error", "message"),
    [
        (Gan, {}, ValueError, "Gan has no forward.*model=<.*Gan has 'first', 'second'"),
        (Gan, {"model": "third"}, ValueError, "model='third': .*Gan has 'first', 'second'"),
        (
            Unused,
            {"layers": "second.2"},
            RuntimeError,
            "no training batch was seen: Unused was not called.*data=.*model=",
        ),
        (module, {"likelihood": "regression"}, ValueError, "needs targets: give data="),
    ],
)
def test_what_is_missing_is_named(make, settings, error, message):
    with pytest.raises(error, match=message):
        fit(make(), [EvidenceCallback(**EVIDENCE | settings)])


def test_one_of_two_networks():
    model, callback = Gan(), EvidenceCallback(**EVIDENCE, model="first")
    fit(model, [callback])
    assert_equal(model.first, plain(n_samples=N, **EVIDENCE).model)


def test_a_stream_needs_its_length():
    loader = [(x[None], y[None]) for x, y in zip(*make_data(4, torch.float64), strict=True)]
    with pytest.raises(ValueError, match="give it as n_samples"):
        fit(module(), [EvidenceCallback(**EVIDENCE)], loader=loader)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"likelihood": "poisson"}, ValueError, "likelihood='poisson'"),
        ({"loss_scale": 0}, ValueError, "loss_scale=0"),
        ({"n_samples": 0}, ValueError, "n_samples=0"),
        ({"model": make_model()}, ValueError, "expected the name of a submodule"),
        ({"data": iter([])}, TypeError, "an iterator can be read once only"),
        ({"every_n_steps": 0}, ValueError, "every_n_steps=0"),
        ({"strength": 0.1}, TypeError, "strength"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, error, message):
    with pytest.raises(error, match=message):
        EvidenceCallback(**EVIDENCE | settings)
