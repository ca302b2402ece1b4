"""What a sharded layer costs each process, counted: bytes sent and bytes held.

``python -m adareg.bench.distributed`` prints the table of the documentation.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from adareg.core.linalg import _DOUBLE_UP_TO


@dataclass(frozen=True)
class Head:
    """A p x d weight on so many processes, sharded along its rows as FSDP2 does.

    Args:
        p: outputs.
        d: fan-in.
        ranks: processes; those of FSDP2 hold p·d/ranks entries of the weight each.
        rule: ``"joint"``, ``"alternating"`` or ``"official"``.
        weight_bytes: bytes of an entry of the weight, 4 or 8.
    """

    p: int
    d: int
    ranks: int
    rule: str = "joint"
    weight_bytes: int = 4

    @property
    def k(self) -> int:
        """The shorter side."""
        return min(self.p, self.d)

    @property
    def n(self) -> int:
        """The longer side."""
        return max(self.p, self.d)

    @property
    def factor_bytes(self) -> int:
        """Bytes of an entry of a factor."""
        return 8 if self.weight_bytes == 8 or self.p * self.d <= _DOUBLE_UP_TO else 4

    def fsdp_traffic(self) -> dict[str, int]:
        """Bytes that a process gives to collectives, in a step of either mode and an update.

        A step sums up one k x k matrix. An update sums up the Gram matrix and the lengths of
        the new basis, and receives one decomposition; a sweep decomposes twice and sums up
        one matrix more. If rows are the shorter side, shards are exchanged first and, in a
        step, back. Where rounding hides eigenvalues that matter, which is rare, an update
        sends ``8·(ranks + 1)·k²`` more.
        """
        k = self.k
        if self.rule == "joint":
            update = 8 * (k**2 + (k**2 + k) + k)
        else:
            update = 8 * (2 * k**2 + 2 * (k**2 + k) + k)
        step = self.factor_bytes * k**2
        if self.p > self.d:
            return {"update": update, "coupled": step, "proximal": step}
        there = self.shard_bytes
        shrunk = there // self.weight_bytes * self.factor_bytes
        return {
            "update": update + there,
            "coupled": step + there + there,
            "proximal": step + there + shrunk,
        }

    def ddp_traffic(self) -> dict[str, int]:
        """The same for DDP: the owner sends all factors, and a step needs nothing."""
        return {"update": self.factors(self.n), "coupled": 0, "proximal": 0}

    @property
    def shard_bytes(self) -> int:
        """A process's part of the weight."""
        return -(-self.p * self.d // self.ranks) * self.weight_bytes

    def factors(self, n: int) -> int:
        """Bytes of both precisions, with ``n`` rows of the longer basis."""
        return self.factor_bytes * (self.k * (n + self.k) + 2 * self.k + 1)

    @property
    def held(self) -> int:
        """What a process keeps: both precisions, and the dense one that products need."""
        return self.factors(-(-self.n // self.ranks)) + self.factor_bytes * self.k**2

    @property
    def peak(self) -> int:
        """The most that AdaReg needs at a time, in an update or in a step.

        An update has the old factors beside the new ones, and in float64 the Gram matrix, what is
        decomposed, its vectors with the solver's workspace of twice their size, and the product
        that makes the basis. A step has two products of the size of the shard.
        """
        update = 2 * self.held + 6 * 8 * self.k**2
        products = 2 * self.shard_bytes // self.weight_bytes * self.factor_bytes
        return max(update, self.held + products)

    def row(self) -> str:
        """A row of the table in the documentation: MB of 10⁶ bytes, float32 weights."""
        sweep = replace(self, rule="alternating").fsdp_traffic()["update"]
        traffic = self.fsdp_traffic()
        sizes = self.shard_bytes, self.held, self.peak, traffic["coupled"], traffic["update"], sweep
        numbers = " | ".join(f"{size / 1e6:,.0f}" for size in sizes)
        return f"| {self.p:,} x {self.d:,} | {self.ranks} | {numbers} |"


#: The heads in the documentation: of GPT-2 and of Llama 3.
HEADS = [*(Head(50257, 768, ranks) for ranks in (1, 2, 4, 8)), Head(128256, 4096, 8)]


def main() -> None:
    """Print the rows of the table."""
    sys.stdout.write("".join(f"{head.row()}\n" for head in HEADS))


if __name__ == "__main__":
    main()
