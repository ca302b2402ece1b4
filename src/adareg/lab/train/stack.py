"""Many networks of one architecture as one: stacked parameters and a stacked forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from adareg.lab.train import operations
from adareg.lab.train.networks import Network

#: Applied to the input of a fully connected layer: (activations, which layer) -> activations.
Dropper = Callable[[Tensor, int], Tensor]


class Stack:
    """Replicas of one architecture, all with batch normalisation or all without.

    Args:
        networks: what to stack, as they are; they are copied.
        device: where to.
        dtype: of all parameters.
    """

    def __init__(
        self, networks: Sequence[Network], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.architecture = networks[0].architecture
        states = [dict(network.named_parameters()) for network in networks]
        self.parameters = {
            name: _stacked([state[name] for state in states], device, dtype).requires_grad_()
            for name in states[0]
        }
        buffers = [dict(network.named_buffers()) for network in networks]
        self.buffers = {
            name: _stacked([b[name] for b in buffers], device, dtype)
            for name in buffers[0]
            if "running" in name
        }

    def __len__(self) -> int:
        return len(self.parameters["fc.0.weight"])

    @property
    def last(self) -> str:
        """The name of the last layer."""
        return f"fc.{len(self.architecture.hidden)}"

    def layers(self, selection: str) -> list[str]:
        """The names of the layers that AdaReg's "last", "fc", "conv" or "all" stands for."""
        fc = [f"fc.{i}" for i in range(len(self.architecture.hidden) + 1)]
        conv = [f"conv.{i}" for i in range(len(self.architecture.channels))]
        return {"last": fc[-1:], "fc": fc, "conv": conv, "all": conv + fc}[selection]

    def matrix(self, layer: str) -> Tensor:
        """A layer's weights as matrices, (R, outputs, fan-in)."""
        return self.parameters[f"{layer}.weight"].flatten(2)

    def forward(
        self, x: Tensor, training: bool = False, drop: Dropper | None = None
    ) -> list[Tensor]:
        """The hidden fully connected layers' activations (R, B, h), and the output last.

        Args:
            x: (R, B, features), or images (R, B, height, width, channels).
            training: with the batch's statistics in batch normalisation.
            drop: dropout, where training has it.
        """
        h = self._features(x, training)
        outputs = []
        for i in range(len(self.architecture.hidden) + 1):
            h = h if drop is None else drop(h, i)
            h = operations.linear(
                h, self.parameters[f"fc.{i}.weight"], self.parameters.get(f"fc.{i}.bias")
            )
            if i < len(self.architecture.hidden):
                norm = self._norm(f"fc_norm.{i}")
                h = (h if norm is None else norm(h, training)).relu()
            outputs.append(h)
        return outputs

    def _features(self, x: Tensor, training: bool) -> Tensor:
        blocks = [
            operations.Block(
                self.parameters[f"conv.{i}.weight"],
                self.parameters.get(f"conv.{i}.bias"),
                self._norm(f"conv_norm.{i}"),
            )
            for i in range(len(self.architecture.channels))
        ]
        if blocks:
            return operations.features(x, blocks, training)
        return x.movedim(-1, 2).flatten(2) if x.ndim == 5 else x

    def _norm(self, name: str) -> operations.Norm | None:
        if f"{name}.weight" not in self.parameters:
            return None
        return operations.Norm(
            self.parameters[f"{name}.weight"],
            self.parameters[f"{name}.bias"],
            self.buffers[f"{name}.running_mean"],
            self.buffers[f"{name}.running_var"],
        )


def _stacked(tensors: Sequence[Tensor], device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.stack([tensor.detach() for tensor in tensors]).to(device, dtype)
