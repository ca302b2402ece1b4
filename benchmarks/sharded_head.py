"""Peak memory of an FSDP2 head's step and update per process, beside what is counted.

    torchrun --nproc-per-node 4 benchmarks/sharded_head.py --out results/bench/sharded-cpu.json

On CPUs it is the growth of the process's resident memory, on GPUs that of allocated memory.
"""

import argparse
import json
import resource
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import adareg
from adareg.bench.distributed import Head


def peak(device: torch.device) -> int:
    """Bytes at the highest so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure on all processes; rank 0 prints the largest of each number."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", type=int, nargs=2, default=(50257, 768))
    parser.add_argument("--rule", default="joint")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", dist.get_rank()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    p, d = args.shape
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(d, p, bias=False))
    fully_shard(model)
    model.to_empty(device=device)
    torch.manual_seed(dist.get_rank())
    nn.init.normal_(model[0].weight.to_local().detach(), std=0.02)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    reg = adareg.AdaReg(model, rule=args.rule)
    model[0].weight.grad = torch.zeros_like(model[0].weight)
    optimizer.step()
    start = peak(device)
    reg.update()
    began = time.perf_counter()
    reg.update()
    update, seconds = peak(device) - start, time.perf_counter() - began
    reg.attach(optimizer, "proximal")
    optimizer.step()
    step = peak(device) - start
    found = torch.tensor([update, step, seconds], dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        update, step, seconds = found.tolist()
        head = Head(p, d, dist.get_world_size(), args.rule)
        settings = {"p": p, "d": d, "ranks": head.ranks, "rule": args.rule, "device": device.type}
        sizes = {"update": int(update), "peak": int(max(update, step)), "counted": head.peak}
        record = {**settings, **sizes, "seconds": seconds}
        print(json.dumps(record))
        if args.out:
            records = json.loads(args.out.read_text()) if args.out.exists() else []
            kept = [r for r in records if (r["ranks"], r["rule"]) != (head.ranks, args.rule)]
            args.out.write_text(json.dumps([*kept, record], indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
