"""The Trainer's callback trains as the plain loop does, and resumes as if never broken off."""

from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.utils.data import IterableDataset

from adareg import AdaReg
from adareg import transformers as integration
from adareg.transformers import AdaRegCallback
from trainer_training import BATCH, MARKS, STRONG, Classifier, N, dataset, make_trainer, plain
from training import assert_close, assert_equal, make_data, make_model, train

pytestmark = MARKS


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("every", [{}, {"every_n_steps": 5}])
@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_trains_as_the_plain_loop_does(mode, every, optimizer, tmp_path):
    model, callback = Classifier(), AdaRegCallback(**STRONG, mode=mode, **every)
    make_trainer(tmp_path, model, [callback], optimizer=optimizer).train()
    assert len(model.batches) == 4 * N // BATCH
    assert not torch.equal(model.batches[0][0], model.batches[N // BATCH][0])  # shuffled
    reference = plain(model.batches, mode, every=every.get("every_n_steps"), optimizer=optimizer)
    assert_equal(model, reference)
    assert not callback.regularizer._attachment.active


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
def test_accumulates_and_clips_as_the_plain_loop_does(mode, tmp_path):
    model = Classifier()
    options = {"gradient_accumulation_steps": 3, "max_grad_norm": 0.05}
    make_trainer(tmp_path, model, [AdaRegCallback(**STRONG, mode=mode)], **options).train()
    reference = plain(model.batches, mode, accumulate=3, clip=0.05)
    assert_close(model, reference, rtol=1e-12, atol=1e-13)
    unclipped = plain(model.batches, mode, accumulate=3)
    assert not torch.allclose(model.model[2].weight, unclipped.model[2].weight, atol=1e-4)


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("every", [{"every_n_epochs": 2}, {"every_n_steps": 5}])
@pytest.mark.parametrize("step", [10, 12, "epoch"])
def test_resumes_as_if_never_broken_off(step, every, mode, tmp_path):
    """From mid-epoch, from the last step of an epoch, and from the end of an epoch."""
    settings = {**STRONG, **every, "mode": mode}
    by_step = {"save_strategy": "steps", "save_steps": step}
    saving = {"save_strategy": "epoch"} if step == "epoch" else by_step
    whole, callback = Classifier(), AdaRegCallback(**settings)
    make_trainer(tmp_path / "a", whole, [callback], 6, Adam, **saving).train()
    checkpoint = tmp_path / "a" / f"checkpoint-{12 if step == 'epoch' else step}"
    checkpoint = checkpoint.rename(tmp_path / "moved")

    resumed, again = Classifier(), AdaRegCallback(**settings)
    trainer = make_trainer(tmp_path / "b", resumed, [again], 6, Adam)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert_equal(resumed, whole)
    assert again.regularizer.metrics() == callback.regularizer.metrics()
    assert not any("AdaReg" in key for group in trainer.optimizer.param_groups for key in group)


def test_stopping_within_an_epoch_is_no_epoch(tmp_path):
    """Else a training resumed with more steps would not be that which never stopped."""
    whole, part = Classifier(), Classifier()
    make_trainer(tmp_path / "a", whole, [AdaRegCallback(**STRONG)], 6, Adam).train()
    options = {"save_strategy": "steps", "save_steps": 9, "max_steps": 9}
    make_trainer(tmp_path / "b", part, [AdaRegCallback(**STRONG)], 6, Adam, **options).train()
    resumed = Classifier()
    trainer = make_trainer(tmp_path / "b", resumed, [AdaRegCallback(**STRONG)], 6, Adam)
    trainer.train(resume_from_checkpoint=True)
    assert_equal(resumed, whole)


def test_a_checkpoint_without_its_state_is_told(tmp_path):
    options = {"save_strategy": "epoch"}
    make_trainer(tmp_path, Classifier(), [], 2, **options).train()
    callback = AdaRegCallback(**STRONG)
    trainer = make_trainer(tmp_path, Classifier(), [callback], 3, **options)
    with pytest.warns(UserWarning, match="no state of an AdaRegCallback with prefix='adareg/'"):
        trainer.train(resume_from_checkpoint=True)


def test_a_checkpoint_is_resumed_without_the_callback_too(tmp_path):
    options = {"save_strategy": "epoch"}
    make_trainer(tmp_path, Classifier(), [AdaRegCallback()], 2, **options).train()
    make_trainer(tmp_path, Classifier(), [], 3, **options).train(resume_from_checkpoint=True)


def test_training_twice_starts_anew(tmp_path):
    callback = AdaRegCallback(**STRONG)
    trainer = make_trainer(tmp_path, Classifier(), [callback], 2)
    trainer.train()
    first = callback.regularizer
    trainer.train()
    assert callback.regularizer is not first


def test_two_callbacks_for_two_selections(tmp_path):
    settings = {"model.0": {"strength": 1e-2}, "model.2": {"strength": 1e-3}}
    options = {"save_strategy": "epoch"}
    make = lambda: [AdaRegCallback(n, **s, prefix=f"{n}/") for n, s in settings.items()]  # noqa: E731
    whole, resumed = Classifier(), Classifier()
    make_trainer(tmp_path, whole, make(), 4, **options).train()
    trainer = make_trainer(tmp_path, resumed, make(), 4, **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    assert_equal(resumed, whole)


class Stream(IterableDataset):
    def __iter__(self):
        yield from dataset()


def test_a_stream_has_no_epochs_and_no_length(tmp_path):
    options = {"data": Stream(), "max_steps": 4}
    with pytest.raises(ValueError, match="no length and so no epochs; give every_n_steps"):
        make_trainer(tmp_path, Classifier(), [AdaRegCallback()], **options).train()
    callback = AdaRegCallback(strength="auto", every_n_steps=2)
    with pytest.raises(ValueError, match="give it as n_samples"):
        make_trainer(tmp_path, Classifier(), [callback], **options).train()
    callback = AdaRegCallback(strength="auto", every_n_steps=2, n_samples=N)
    make_trainer(tmp_path, Classifier(), [callback], **options).train()
    assert callback.regularizer.strength == 1 / (2 * N)


def test_the_log_history_has_the_metrics(tmp_path):
    callback = AdaRegCallback(**STRONG)
    trainer = make_trainer(tmp_path, Classifier(), [callback], logging_strategy="epoch")
    trainer.train()
    trainer.evaluate(dataset())
    logged = [entry for entry in trainer.state.log_history if "adareg/penalty" in entry]
    assert len(logged) == 5  # four epochs and the summary
    assert "eval_loss" in trainer.state.log_history[-1]
    expected = {f"adareg/{k}": v for k, v in callback.regularizer.metrics().items()}
    assert {k: v for k, v in logged[-1].items() if k.startswith("adareg/")} == expected


def test_reporters_get_the_metrics_if_it_is_first(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    options = {"logging_strategy": "epoch", "report_to": "tensorboard"}
    callback = AdaRegCallback(**STRONG)
    trainer = make_trainer(tmp_path, Classifier(), [callback], **options)
    callback.add_to(trainer)
    trainer.train()
    (written,) = tmp_path.rglob("events.out.tfevents.*")  # where is up to the version
    events = EventAccumulator(str(written.parent))
    events.Reload()
    assert len(events.Scalars("train/adareg/model.2/stable_rank")) == 5


def test_reporters_that_do_not_get_the_metrics_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    trainer = make_trainer(tmp_path, Classifier(), [AdaRegCallback()], 1, report_to="tensorboard")
    with pytest.warns(UserWarning, match="serves tensorboard before .* callback.add_to"):
        trainer.train()


def test_an_optimizer_that_the_trainer_makes(tmp_path):
    callback = AdaRegCallback(**STRONG)
    trainer = make_trainer(tmp_path, Classifier(), [callback], 2, optimizer=None)
    trainer.train()
    assert callback.regularizer._steps == trainer.state.global_step == 12
    assert (callback.regularizer.priors["model.2"].row.eigenvalues() != 1).all()  # it has updated


def test_logs_nothing_when_told(tmp_path):
    callback = AdaRegCallback(log=False)
    trainer = make_trainer(tmp_path, Classifier(), [callback], 1, logging_strategy="epoch")
    trainer.train()
    assert not any("adareg/penalty" in entry for entry in trainer.state.log_history)


def test_wrong_settings_are_refused_at_once():
    with pytest.raises(ValueError, match="mode='both'"):
        AdaRegCallback(mode="both")
    with pytest.raises(RuntimeError, match="call train first"):
        _ = AdaRegCallback().regularizer


@pytest.fixture
def accelerator():
    yield Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
def test_a_plain_loop_with_accelerate(mode, accelerator):
    data, models = make_data(dtype=torch.float64), []
    for prepare in (accelerator.prepare, lambda optimizer: optimizer):
        model = make_model(torch.float64)
        optimizer = prepare(SGD(model.parameters(), 0.05))
        AdaReg(model, **STRONG).attach(optimizer, mode, update_every=3)
        models.append(train(model, optimizer, 8, data))
    assert_equal(*models)


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.usefixtures("accelerator")
def test_a_step_that_accelerates_scaler_skips_does_nothing(mode):
    model, scaler = make_model(), torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = AcceleratedOptimizer(SGD(model.parameters(), 0.05), scaler=scaler)
    reg = AdaReg(model, **STRONG)
    reg.attach(optimizer, mode, update_every=1)
    x, y = make_data()
    for overflow in (True, False):
        before = model[2].weight.detach().clone()
        scaler.scale(cross_entropy(model(x), y)).backward()
        if overflow:
            model[0].weight.grad[0, 0] = torch.inf
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(model[2].weight, before) == overflow
        assert reg._steps == (not overflow)


@pytest.mark.parametrize(("given", "kept"), [([1], None), (None, [1]), ([2], [1])])
def test_the_training_set_is_found_where_any_version_keeps_it(given, kept):
    """Transformers 4.49 keeps it in its state, and gives the callbacks nothing."""
    state = SimpleNamespace(train_dataloader=kept)
    assert integration._given("train_dataloader", state, {"train_dataloader": given}) == [1]
    assert (
        integration._given("train_dataloader", SimpleNamespace(), {"train_dataloader": given})
        == given
    )
