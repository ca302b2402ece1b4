"""The Trainer's callback finds the head of a model of Transformers, and trains it."""

import pytest
import torch
import transformers
from torch import nn
from torch.optim import Adam

from adareg import AdaReg
from adareg.transformers import AdaRegCallback, find_head
from trainer_training import MARKS, Classifier, make_trainer
from training import DEVICES

pytestmark = MARKS


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
    trainer = make_trainer(tmp_path, model, [callback], 2, Adam, texts(), **options)
    trainer.train()
    reg = callback.regularizer
    assert reg.strength == 1 / 24
    assert list(reg.layers) == ["classifier"]
    assert reg._steps == trainer.state.global_step > 0 or precision.get("fp16")  # which may skip
    u, v = reg.priors["classifier"].row.eigenvalues().aminmax()
    assert u < v
