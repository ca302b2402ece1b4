"""What a sharded layer costs each process, counted: bytes sent and bytes held.

``python -m adareg.bench.distributed`` prints the table of the documentation.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        step, back.
        """
        k = self.k
        if self.rule == "joint":
            update = 8 * (k**2 + (k**2 + k) + k)
        else:
            update = 8 * (2 * k**2 + 2 * (k**2 + k) + k)
        step = self.factor_bytes * k**2
        moved = self.shard_bytes if self.p <= self.d else 0
        step += 2 * moved
        return {"update": update + moved, "coupled": step, "proximal": step}

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
