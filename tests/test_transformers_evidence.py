"""The Trainer's callback that learns from the data: the plain loop's training, data, errors."""

import pytest
import torch
import transformers
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import Adam

from adareg.core.evidence import constants
from adareg.core.evidence.constants import Constants
from adareg.transformers import EvidenceCallback
from trainer_training import MARKS, Classifier, N, dataset, make_trainer, plain
from training import DEVICES, assert_close, assert_equal, make_data

pytestmark = MARKS
EVIDENCE = {"likelihood": "classification"}


def numbers():
    """Targets of a regression."""
    return make_data(N, torch.float64)[0][:, :5].tanh()


CASES = {
    "classification": (cross_entropy, None, {}),
    "regression": (mse_loss, numbers(), {"likelihood": "regression"}),
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Updates after steps 5, 7, 10, 13, 17 and 23."""
    monkeypatch.setattr(constants, "DEFAULTS", Constants(first=5))


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("case", CASES)
def test_trains_as_the_plain_loop_does(case, mode, tmp_path):
    loss, targets, settings = CASES[case]
    model, callback = Classifier(loss=loss), EvidenceCallback(**EVIDENCE | settings, mode=mode)
    make_trainer(tmp_path, model, [callback], data=dataset(targets=targets)).train()
    reference = plain(model.batches, mode, loss=loss, n_samples=N, **EVIDENCE | settings)
    assert_equal(model, reference)
    reg = callback.regularizer
    assert reg.metrics()["updates"] == 6
    inputs, labels = reg._source.batch()
    seen = model.batches[:23]  # no update is due after the last one
    assert torch.equal(labels, torch.cat([y for _, y in seen])[-N:])
    assert torch.equal(inputs["x"], torch.cat([x for x, _ in seen])[-N:])


@pytest.mark.parametrize("every", [{"every_n_steps": 12}, {"every_n_epochs": 2}])
def test_updates_when_told(every, tmp_path):
    model, callback = Classifier(), EvidenceCallback(**EVIDENCE, **every)
    make_trainer(tmp_path, model, [callback]).train()
    assert_equal(model, plain(model.batches, every=12, n_samples=N, **EVIDENCE))
    assert callback.regularizer.metrics()["updates"] == 2


def test_accumulates_and_clips_as_the_plain_loop_does(tmp_path):
    model, callback = Classifier(), EvidenceCallback(**EVIDENCE)
    options = {"gradient_accumulation_steps": 3, "max_grad_norm": 0.05}
    make_trainer(tmp_path, model, [callback], **options).train()
    reference = plain(model.batches, accumulate=3, clip=0.05, n_samples=N, **EVIDENCE)
    assert_close(model, reference, rtol=1e-12, atol=1e-13)
    assert callback.regularizer.metrics()["updates"] == 2  # of 8 steps


def test_labels_that_the_model_is_not_given(tmp_path):
    """A loss of the user's own, as that of a loop, tells them all the same."""

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Classifier().model

        def forward(self, x):
            return {"logits": self.model(x)}

    callback = EvidenceCallback(**EVIDENCE)
    trainer = make_trainer(tmp_path, Bare(), [callback], 2, remove_unused_columns=False)
    trainer.compute_loss_func = lambda outputs, y, **_: cross_entropy(outputs["logits"], y)
    trainer.train()
    x, y = make_data(N, torch.float64)
    inputs, labels = callback.regularizer._source.batch()
    found = (inputs["x"][:, None] == x).all(-1).int().argmax(1)
    assert torch.equal(labels, y[found])


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({"data": ({"x": make_data(N, torch.float64)[0]}, make_data(N)[1])}, 10),
        ({"every_n_steps": 10}, 12),  # as many batches as are looked at come before the next
    ],
)
def test_resumes_as_if_never_broken_off(settings, step, tmp_path):
    class Lenient(Classifier):
        def forward(self, x, labels=None):
            return super().forward(x, x[:, :5].argmax(1) if labels is None else labels)

    saving = {"save_strategy": "steps", "save_steps": step}
    whole, callback = Lenient(), EvidenceCallback(**EVIDENCE | settings)
    make_trainer(tmp_path, whole, [callback], 4, Adam, **saving).train()
    resumed, again = Lenient(), EvidenceCallback(**EVIDENCE | settings)
    trainer = make_trainer(tmp_path / "b", resumed, [again], 4, Adam)
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert_equal(resumed, whole)
    assert again.regularizer.metrics() == callback.regularizer.metrics()


def test_the_log_history_has_what_was_found(tmp_path):
    callback = EvidenceCallback(**EVIDENCE)
    trainer = make_trainer(tmp_path, Classifier(), [callback], logging_strategy="epoch")
    trainer.train()
    expected = {f"adareg/{k}": v for k, v in callback.regularizer.metrics().items()}
    assert {"adareg/gamma", "adareg/noise", "adareg/model.0/scale"} <= expected.keys()
    last = trainer.state.log_history[-1]
    assert {k: v for k, v in last.items() if k.startswith("adareg/")} == expected


def test_a_part_of_the_model(tmp_path):
    """The network itself, whose labels are read off the gradient."""
    whole, part = Classifier(), Classifier()
    make_trainer(tmp_path, whole, [EvidenceCallback(**EVIDENCE)]).train()
    callback = EvidenceCallback(**EVIDENCE, model="model")
    make_trainer(tmp_path, part, [callback]).train()
    assert list(callback.regularizer.layers) == ["0", "2"]
    assert_close(part, whole, rtol=1e-12, atol=1e-13)


class Loss(Classifier):
    def forward(self, x, labels):
        return {"loss": super().forward(x, labels)["loss"]}


@pytest.mark.parametrize(
    ("make", "settings", "error", "message"),
    [
        (Loss, {}, RuntimeError, "no training batch was seen: Loss was .*data=.*model="),
        (Classifier, {"model": "net"}, ValueError, "model='net': .*Classifier has 'model'"),
        (
            Classifier,
            {"model": "model", "likelihood": "regression"},
            ValueError,
            "needs targets: give data=",
        ),
    ],
)
def test_what_is_missing_is_named(make, settings, error, message, tmp_path):
    with pytest.raises(error, match=message):
        make_trainer(tmp_path, make(), [EvidenceCallback(**EVIDENCE | settings)]).train()


BERT = {
    "vocab_size": 50,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", [{}, {"bf16": True}, {"fp16": True}])
@pytest.mark.parametrize("likelihood", CASES)
@pytest.mark.parametrize("layers", ["last", "all"])
def test_bert_trains(layers, likelihood, precision, device, tmp_path):
    if precision.get("fp16") and device == "cpu":
        pytest.skip("the Trainer has fp16 on accelerators alone")
    K = 3 if likelihood == "classification" else 1
    config = transformers.BertConfig(**BERT, num_labels=K)
    model = transformers.BertForSequenceClassification(config)
    tokens = torch.randint(50, (12, 6))
    data = [{"input_ids": t, "labels": t[0] % 3 if K > 1 else t[0] / 50} for t in tokens]
    callback = EvidenceCallback(likelihood, layers, every_n_steps=2)
    options = {"use_cpu": device == "cpu", "gradient_accumulation_steps": 2, **precision}
    make_trainer(tmp_path, model, [callback], 4, Adam, data, **options).train()
    reg = callback.regularizer
    assert len(reg.layers) == (1 if layers == "last" else 11)
    assert reg.metrics()["updates"] >= 2
    assert reg.metrics()["gamma"] > 0
    assert len(reg._source.batch()[1]) == 12
