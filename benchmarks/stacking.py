"""Networks trained in one stack against the same networks trained one after another.

    python benchmarks/stacking.py [--device cuda] [--out results/bench]

The paper's MNIST CNN on 600 samples, six methods with ten seeds each, batch 256. Both sides take
turns in one run; a stack includes everything that it needs, the recording of CUDA graphs too.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from adareg.bench.report import machine
from adareg.lab.data import Dataset
from adareg.lab.train import plain_loop
from adareg.lab.train.config import Config
from adareg.lab.train.networks import ARCHITECTURES
from adareg.lab.train.stacked import Data, Replica, Trainer, products, stacks

METHODS = ("none", "weight-decay", "dropout", "batch-norm", "decov", "adareg")
ARCHITECTURE = ARCHITECTURES["mnist"]


def images(n: int) -> Dataset:
    """Random images: the time does not depend on what they show."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 1, 28, 28, generator=draw), torch.randint(10, (n,), generator=draw)
    names = tuple(map(str, range(10)))
    return Dataset(
        name="mnist",
        task="classification",
        x_train=x,
        y_train=y,
        x_test=x[:10],
        y_test=y[:10],
        names=names,
        provenance={},
    )


def seconds(device: torch.device, action) -> float:
    """Wall time, with the device's work finished on both sides."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def stacked(config: Config, data: Data, replicas: list[Replica]) -> None:
    """Train all of them together."""
    for group in stacks(replicas):
        trainer = Trainer(group, ARCHITECTURE, config, data)
        for epoch in range(config.blocks * config.epochs):
            trainer.epoch(epoch)
            if (epoch + 1) % config.epochs == 0:
                trainer.update()


def peak_flops(device: torch.device) -> float:
    """Floating point operations a second of one large product, as the precision allows."""
    size = 8192 if device.type == "cuda" else 1024
    A, B = torch.randn(2, size, size, device=device)
    A @ B
    times = [seconds(device, lambda: A @ B) for _ in range(10)]
    return 2 * size**3 / statistics.median(times)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--n", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=50, help="of each of two blocks, stacked")
    parser.add_argument("--alone-epochs", type=int, default=5, help="the same, one by one")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def measure(
    config: Config, short: Config, replicas: list[Replica], device: torch.device, repetitions: int
) -> tuple[list[float], list[float], float]:
    """Seconds for an epoch of all networks, stacked and one by one, in turns; and peak flops."""
    source = images(config.n)
    together, one_by_one = [], []
    with products(config.precision) as dtype:
        data = Data(source, config, device, dtype)
        x, y = source.x_train.to(device, dtype), source.y_train.to(device)
        stacked(short, data, replicas)  # compile, warm caches
        for method in METHODS:
            plain_loop.train(Replica(method, 0), short, x, y)
        for _ in range(repetitions):
            together.append(seconds(device, lambda: stacked(config, data, replicas)))
            one_by_one.append(
                seconds(device, lambda: [plain_loop.train(r, short, x, y) for r in replicas])
            )
        peak = peak_flops(device)
    epochs, few = config.blocks * config.epochs, short.blocks * short.epochs
    return [t / epochs for t in together], [t / few for t in one_by_one], peak


def main() -> None:
    """Measure, print, and write JSON."""
    args = arguments()
    device = torch.device(args.device)
    config = Config(
        data="mnist", n=args.n, batch=256, blocks=2, epochs=args.epochs, precision=args.precision
    )
    replicas = [Replica(method, seed) for method in METHODS for seed in range(args.seeds)]
    together, one_by_one, peak = measure(
        config, replace(config, epochs=args.alone_epochs), replicas, device, args.repetitions
    )
    images_per_second = len(replicas) * config.n / statistics.median(together)
    flops = 6 * ARCHITECTURE.multiply_adds * images_per_second
    record = {
        "machine": machine(device),
        "networks": len(replicas),
        "n": config.n,
        "batch": config.batch,
        "precision": config.precision,
        "stacked_seconds_per_epoch": together,
        "alone_seconds_per_epoch": one_by_one,
        "ratio": statistics.median(one_by_one) / statistics.median(together),
        "images_per_second": images_per_second,
        "useful_flops": flops,
        "peak_flops": peak,
        "share_of_peak": flops / peak,
    }
    if device.type == "cuda":
        record["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    print(json.dumps(record, indent=1))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        path = args.out / f"stacking-{device.type}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
