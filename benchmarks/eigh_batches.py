"""Is one batched ``eigh`` faster than one after another? Float64, as an update needs it.

Some CUDA releases fall off a cliff above 32 x 32. Run on the machine in question:
``python benchmarks/eigh_batches.py``.
"""

import torch

from adareg.bench.timing import compare

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print(device, torch.__version__)
for k in (8, 16, 32, 33, 64, 128, 256, 512):
    X = torch.randn(16, k, 2 * k, dtype=torch.float64, device=device)
    A = X @ X.mT
    times = compare(
        {
            "batched": lambda A=A: torch.linalg.eigh(A),
            "one by one": lambda A=A: [torch.linalg.eigh(one) for one in A],
            "on the CPU": lambda A=A: [x.to(device) for x in torch.linalg.eigh(A.cpu())],
        },
        device,
        seconds=0.5,
    )
    print(f"16 of {k:3} x {k:3}:", *(f"{n} {1e3 * t.median:8.2f} ms" for n, t in times.items()))
