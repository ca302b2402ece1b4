"""Everything that needs several processes, in one launch: ``torchrun checks.py FOLDER [NAME …]``.

Each check is run by every rank; what became of it goes to FOLDER/<ranks>-<rank>.json. With names,
these are run instead of all but the ``LATER``.
"""

import json
import os
import sys
import traceback
from datetime import timedelta
from importlib import import_module

import torch
import torch.distributed as dist
from harness import CASES, CHECKS, LATER, TIMEOUT, folder
from jobs import DEVICE, Training, make_model, rank_and_size

#: In this order: what is saved is loaded later, and the last check ends a process.
for module in ("engines", "layers", "work", "checkpoints", "evidence", "failures"):
    import_module(f"check_{module}")


def main():
    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    expected = {case: Training(make_model(), *case).run().outcome() for case in CASES}
    backend = "cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT))
    rank, size = rank_and_size()
    outcomes = {}
    for name in sys.argv[2:] or [name for name in CHECKS if name not in LATER]:
        ranks, cuda, function = CHECKS[name]
        if cuda if DEVICE == "cuda" else size in ranks:
            try:
                function(expected)
                outcomes[name] = "passed"
            except Exception:
                outcomes[name] = traceback.format_exc()
                break  # the other ranks are elsewhere now
    (folder() / f"{size}-{rank}.json").write_text(json.dumps(outcomes))
    sys.stdout.flush()
    os._exit(0)  # threads of gloo may outlive the interpreter and abort


if __name__ == "__main__":
    main()
