"""Fine-tune a tiny BERT on a few labelled texts, without and with AdaReg, and compare.

Run it with ``python examples/transformers_few_labels.py``; under a minute, or seconds with
``--seeds 1 --epochs 5``. It needs transformers, accelerate, matplotlib and rich; nothing is
downloaded: the model is made from a config and starts from random weights, and the texts are made
up from lists of words. Six topics come in three related pairs. The callback is the only difference
between the methods, and it finds the classification head by itself. Each number is a mean over
seeds ± its standard error.

What to see: in the picture, the three pairs of related topics stand out as squares along the
diagonal, although nobody told the network of them. In the table, the paper's λ lowers the stable
rank of the head and changes the accuracy within its error; λ = 1/(2n) for so few texts keeps the
head so small that it has not learned all topics yet.
"""

import argparse
import os
import random
import statistics
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import adareg
from adareg.transformers import AdaRegCallback

METHODS: dict[str, dict[str, float | str] | None] = {
    "none": None,
    "AdaReg 1e-4": {"strength": 1e-4},  # the paper's λ
    "AdaReg auto": {"strength": "auto"},  # λ = 1/(2·texts), from the training set
}
TOPICS = {
    "cats": "purr meow whiskers claws litter tabby",
    "dogs": "bark leash puppy fetch bone terrier",
    "football": "goal keeper striker penalty offside corner",
    "tennis": "serve racket volley deuce backhand net",
    "rain": "umbrella puddle drizzle cloud downpour gutter",
    "snow": "sledge flake ice shovel frost blizzard",
}
PAIRS = {
    ("cats", "dogs"): "pet fur tail vet feed home collar paw",
    ("football", "tennis"): "match player score coach win court team ball",
    ("rain", "snow"): "weather forecast cold wet storm sky morning coat",
}
COMMON = "the a we they was is it today very and with then again some one two old new"
WORDS = sorted({*" ".join([COMMON, *TOPICS.values(), *PAIRS.values()]).split()})
LENGTH = 12


def text(topic: str, rng: random.Random) -> list[str]:
    """Words of which two are the topic's own, four those of its pair, the others anybody's."""
    (pair,) = (words.split() for topics, words in PAIRS.items() if topic in topics)
    words = rng.choices(TOPICS[topic].split(), k=2) + rng.choices(pair, k=4)
    words += rng.choices(COMMON.split(), k=LENGTH - len(words))
    rng.shuffle(words)
    return words


def make_data(per_topic: int, seed: int) -> list[dict[str, Tensor]]:
    """Labelled texts, as ids of words; 0 is padding, 1 begins a text."""
    rng = random.Random(seed)
    return [
        {
            "input_ids": torch.tensor([1] + [WORDS.index(w) + 2 for w in text(topic, rng)]),
            "labels": torch.tensor(label),
        }
        for label, topic in enumerate(TOPICS)
        for _ in range(per_topic)
    ]


def make_model(seed: int) -> BertForSequenceClassification:
    """BERT, but small."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS) + 2,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH + 1,
        num_labels=len(TOPICS),
    )
    return BertForSequenceClassification(config)


def train(
    per_topic: int, epochs: int, seed: int, settings: dict | None
) -> tuple[dict[str, float], Tensor]:
    """One fine-tuning: what it is judged by, and the correlation of topics in the head."""
    callbacks = []
    if settings is not None:
        callbacks = [AdaRegCallback(every_n_epochs=min(10, epochs), **settings)]
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            learning_rate=2e-3,
            per_device_train_batch_size=12,
            per_device_eval_batch_size=600,
            seed=seed,
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            dataloader_pin_memory=False,
        )
        model, data = make_model(seed), make_data(per_topic, seed)
        trainer = Trainer(model, options, train_dataset=data, callbacks=callbacks)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        output = trainer.predict(make_data(100, seed=10_000))
    logits, labels = torch.tensor(output.predictions), torch.tensor(output.label_ids)
    weight = model.classifier.weight.detach()
    judged = {
        "accuracy %": 100 * (logits.argmax(1) == labels).double().mean().item(),
        "NLL": cross_entropy(logits, labels).item(),
        "stable rank": adareg.stable_rank(weight).item(),
        "spectral norm": adareg.spectral_norm(weight).item(),
    }
    return judged, adareg.correlation(weight)


def summary(values: list[float], digits: int) -> str:
    """Mean ± standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def comparison(results: dict[str, list[dict[str, float]]], title: str) -> Table:
    """Methods against what they are judged by."""
    digits = {"accuracy %": 1, "NLL": 3, "stable rank": 2, "spectral norm": 2}
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for column in digits:
        table.add_column(column, justify="right", no_wrap=True)
    for name, rows in results.items():
        table.add_row(name, *(summary([row[c] for row in rows], d) for c, d in digits.items()))
    return table


def picture(correlation: Tensor, path: str) -> None:
    """Topics against topics, from -1 (orange) to 1 (purple)."""
    figure = Figure(figsize=(4.8, 4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(correlation.numpy(), cmap="PuOr", vmin=-1, vmax=1)
    axes.set_xticks(range(len(TOPICS)), list(TOPICS), rotation=30)
    axes.set_yticks(range(len(TOPICS)), list(TOPICS))
    axes.set_title("Which topics the head finds alike")
    figure.colorbar(image, ax=axes)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Fine-tune every model, print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--labels", type=int, default=16, help="labelled texts of each topic")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", default="transformers_few_labels.png")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the models are so small that a second thread only gets in the way
    transformers.logging.set_verbosity_error()

    runs = [(name, seed) for name in METHODS for seed in range(arguments.seeds)]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    correlations = []
    for name, seed in track(runs, "fine-tuning"):
        judged, learned = train(arguments.labels, arguments.epochs, seed, METHODS[name])
        results[name].append(judged)
        if name == "AdaReg 1e-4":
            correlations.append(learned)
    title = f"{arguments.labels} texts of each topic, {arguments.seeds} seeds"
    Console().print(comparison(results, title))
    picture(torch.stack(correlations).mean(0), arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
