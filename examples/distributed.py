"""Train on several processes with DDP or FSDP2; a job that breaks goes on from its last checkpoint.

    torchrun --nproc-per-node 2 --max-restarts 1 examples/distributed.py --engine fsdp --fail-at 25

breaks at step 25, is started again by torchrun, and ends as if nothing had happened (on CPUs set
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, or gloo may look for the processes of the attempt before). It
needs matplotlib, and scikit-learn for its bundled 8 x 8 digits; nothing is downloaded. On any
number of processes, and with both engines, the same global batches give the same losses, and a
checkpoint that some number of processes wrote can be loaded by another.

What to see: the loss falls without a jump where the job broke. The picture has a line where this
start went on from a checkpoint; losses before it are those of earlier starts.
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import adareg

BATCH, UPDATE_EVERY = 64, 5
CUDA = torch.cuda.is_available()


def join() -> torch.device:
    """Find the other processes that torchrun has started; without torchrun, be the only one."""
    backend = "cpu:gloo,cuda:nccl" if CUDA else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if not CUDA:
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cuda", torch.cuda.current_device())


class Training:
    """Everything that a checkpoint holds."""

    def __init__(self, engine: str, device: torch.device) -> None:
        torch.manual_seed(0)
        layers = nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)
        self.model: nn.Module = nn.Sequential(*layers).to(device, torch.float64)
        if engine == "ddp":
            self.model = DistributedDataParallel(self.model)
        else:
            fully_shard(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.reg = adareg.AdaReg(self.model, layers="fc", strength=1e-6)
        self.reg.attach(self.optimizer, update_every=UPDATE_EVERY)
        self.step = 0

    def train_step(self, x: Tensor, y: Tensor) -> float:
        """One step on this process's share of a batch that depends on the step alone."""
        generator = torch.Generator().manual_seed(self.step)
        batch = torch.randint(len(x), (BATCH,), generator=generator)
        mine = batch.chunk(dist.get_world_size())[dist.get_rank()].to(x.device)
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(x[mine]), y[mine])
        loss.backward()
        self.optimizer.step()
        self.step += 1
        dist.all_reduce(mean := loss.detach() / dist.get_world_size())
        return mean.item()

    def save(self, folder: Path) -> None:
        """All processes write together; the file ``.metadata`` is there when all is."""
        dcp.save(self._state(), checkpoint_id=folder / f"step-{self.step:06d}")

    def resume(self, folder: Path) -> None:
        """Load the last complete checkpoint, if there is one."""
        complete = sorted(path.parent for path in folder.glob("step-*/.metadata"))
        if not complete:
            return
        state = self._state()
        dcp.load(state, checkpoint_id=complete[-1])
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.reg.load_state_dict(state["regularizer"])
        self.step = state["step"]

    def _state(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "regularizer": self.reg.state_dict(),
            "step": self.step,
        }


def picture(log: Path, start: int, path: str) -> None:
    """The loss of each step, as the last start that made it has logged it."""
    losses = dict(json.loads(line) for line in log.read_text().splitlines())
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(list(losses), list(losses.values()))
    if start:
        axes.axvline(start, color="tab:orange", label="went on from here")
        axes.legend()
    axes.set(xlabel="step", ylabel="loss of a batch")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train from the last checkpoint to the last step, and draw the losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=["ddp", "fsdp"], default="fsdp")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--fail-at", type=int, help="the last process breaks at this step, once")
    parser.add_argument("--out", default="distributed.png")
    args = parser.parse_args()
    device = join()
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, device=device), torch.tensor(labels, device=device)

    training = Training(args.engine, device)
    training.resume(args.checkpoints)
    last = dist.get_rank() == dist.get_world_size() - 1
    first_start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    start, log = training.step, args.checkpoints / "losses.jsonl"
    if dist.get_rank() == 0:
        args.checkpoints.mkdir(parents=True, exist_ok=True)
        print(f"{args.engine} on {dist.get_world_size()} processes, from step {training.step}")
    loss = 0.0
    while training.step < args.steps:
        if training.step == args.fail_at and last and first_start:
            raise RuntimeError(f"broken on purpose at step {training.step}")
        loss = training.train_step(x, y)
        if dist.get_rank() == 0:
            with log.open("a") as file:
                file.write(json.dumps([training.step, loss]) + "\n")
        if training.step % args.save_every == 0:
            training.save(args.checkpoints)
    metrics = training.reg.metrics()  # on every process: it gathers from all
    if dist.get_rank() == 0:
        print(f"step {training.step}: loss {loss:.9f}, penalty {metrics['penalty']:.9f}")
        picture(log, start, args.out)
        print(f"wrote {args.out}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
