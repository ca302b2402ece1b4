"""The Trainer's callback trains as the plain loop does, and resumes as if never broken off."""

import os
import runpy
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainingArguments

from adareg import AdaReg
from adareg.transformers import AdaRegCallback, find_head
from training import DEVICES, assert_close, assert_equal, make_data, make_model, train

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),
]
ROOT = Path(__file__).parents[1]
N, BATCH = 24, 4
STRONG = {"strength": 0.05, "bounds": (0.1, 10)}


@pytest.fixture(autouse=True)
def _one_thread():
    """The networks are so small that a second thread only gets in the way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Classifier(nn.Module):
    """A model as the Trainer wants it, which remembers the batches it was given."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.model = make_model(dtype)
        self.batches = []

    def forward(self, x, labels):
        self.batches.append((x, labels))
        logits = self.model(x)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def dataset(dtype=torch.float64):
    x, y = make_data(N, dtype)
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
    optimizers = optimizer(model.parameters(), lr=0.05), None
    data = dataset() if data is None else data
    return Trainer(model, arguments, train_dataset=data, callbacks=callbacks, optimizers=optimizers)


def plain(batches, mode, accumulate=1, clip=None, every=None, optimizer=SGD):
    """The same training on the same batches, written out."""
    model = Classifier()
    optimizer = optimizer(model.parameters(), lr=0.05)
    reg = AdaReg(model, **STRONG)
    reg.attach(optimizer, mode, update_every=every)
    per_epoch = N // BATCH
    for i, (x, labels) in enumerate(batches):
        (model(x, labels)["loss"] / accumulate).backward()
        if (i + 1) % accumulate == 0:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        if (i + 1) % per_epoch == 0 and every is None:
            reg.update()
    return model


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


def tiny(**changes):
    sizes = {
        "vocab_size": 50,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "num_labels": 3,
    }
    return {**sizes, **changes}


GPT2 = {
    "vocab_size": 50,
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "num_labels": 3,
    "pad_token_id": 0,
}
BART = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 50, "num_labels": 3}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
BART |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 50}
HEADS = [
    ("BertForSequenceClassification", "BertConfig", tiny(), "classifier"),
    ("BertForTokenClassification", "BertConfig", tiny(), "classifier"),
    ("BertForQuestionAnswering", "BertConfig", tiny(num_labels=2), "qa_outputs"),
    ("BertForMultipleChoice", "BertConfig", tiny(), "classifier"),
    ("BertForMaskedLM", "BertConfig", tiny(), "cls.predictions.decoder"),
    ("RobertaForSequenceClassification", "RobertaConfig", tiny(), "classifier.out_proj"),
    (
        "RobertaForSequenceClassification",
        "RobertaConfig",
        tiny(num_labels=8),
        "classifier.out_proj",
    ),
    (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": 50, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
        "classifier",
    ),
    ("GPT2ForSequenceClassification", "GPT2Config", GPT2, "score"),
    ("GPT2LMHeadModel", "GPT2Config", GPT2, "lm_head"),
    ("BartForSequenceClassification", "BartConfig", BART, "classification_head.out_proj"),
    ("T5ForConditionalGeneration", "T5Config", T5, "lm_head"),
    ("T5ForSequenceClassification", "T5Config", T5, "classification_head.out_proj"),
    ("ViTForImageClassification", "ViTConfig", tiny(image_size=8, patch_size=4), "classifier"),
]


@pytest.mark.parametrize(("kind", "config", "sizes", "name"), HEADS)
def test_the_head_is_found(kind, config, sizes, name):
    sizes = {k: v for k, v in sizes.items() if "ViT" not in config or k != "vocab_size"}
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes))
    assert list(AdaReg(model, find_head(model)).layers) == [name]


def test_a_model_of_ones_own_has_a_last_layer():
    assert find_head(Classifier()) == "last"


def test_a_frozen_copy_of_the_head_is_not_it():
    """As with adapters, which keep the original beside the copy that is trained."""
    config = transformers.BertConfig(**tiny())
    model = transformers.BertForSequenceClassification(config)
    model.original = nn.Linear(8, 3).requires_grad_(False)
    assert find_head(model) is model.classifier


def texts(n=12):
    ids = torch.randint(50, (n, 6))
    return [{"input_ids": i, "labels": i[0] % 3} for i in ids]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", [{}, {"bf16": True}, {"fp16": True}])
def test_bert_trains(precision, device, tmp_path):
    if precision.get("fp16") and device == "cpu":
        pytest.skip("the Trainer has fp16 on accelerators alone")
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**tiny()))
    callback = AdaRegCallback(strength="auto", every_n_steps=2)
    options = {"use_cpu": device == "cpu", "gradient_accumulation_steps": 2, **precision}
    make_trainer(tmp_path, model, [callback], 2, Adam, texts(), **options).train()
    reg = callback.regularizer
    assert reg.strength == 1 / 24
    assert list(reg.layers) == ["classifier"]
    assert reg._steps == (4 if not precision.get("fp16") else reg._steps)
    u, v = reg.priors["classifier"].row.eigenvalues().aminmax()
    assert u < v


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
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    options = {"logging_strategy": "epoch", "report_to": "tensorboard"}
    callback = AdaRegCallback(**STRONG)
    trainer = make_trainer(tmp_path, Classifier(), [callback], **options)
    callback.add_to(trainer)
    trainer.train()
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert len(events.Scalars("train/adareg/model.2/stable_rank")) == 5


def test_reporters_that_do_not_get_the_metrics_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    trainer = make_trainer(tmp_path, Classifier(), [AdaRegCallback()], 1, report_to="tensorboard")
    with pytest.warns(UserWarning, match="serves tensorboard before .* callback.add_to"):
        trainer.train()


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


def test_the_example_prints_its_tables(monkeypatch, capsys):
    arguments = ["--labels", "2", "--epochs", "2", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["transformers_few_labels.py", *arguments])
    verbosity = transformers.logging.get_verbosity()
    try:
        runpy.run_path(str(ROOT / "examples/transformers_few_labels.py"), run_name="__main__")
    finally:
        transformers.logging.set_verbosity(verbosity)
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if "±" in line]
    assert len(rows) == 3
    assert all(row.count("±") == 4 for row in rows)
    assert "correlation of topics" in out
