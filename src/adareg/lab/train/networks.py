"""The paper's networks, with places for dropout and batch normalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from adareg.lab.train.draws import Purpose, generator, uniform

#: The statistics of batch normalisation, as torch has them by default.
BN_EPS, BN_MOMENTUM = 1e-5, 0.1


@dataclass(frozen=True)
class Architecture:
    """Convolutions, each followed by 2 x 2 max pooling, then fully connected layers.

    Args:
        inputs: (channels, height, width) of an image, or (features,).
        channels: outputs of each convolution; none for a multilayer perceptron.
        hidden: widths of the hidden fully connected layers.
        outputs: classes or tasks.
        kernel: height and width of the convolutions' kernels.
    """

    inputs: tuple[int, ...]
    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    outputs: int
    kernel: int = 5

    def __post_init__(self) -> None:
        """Refuse what 2 x 2 pooling would cut off."""
        size = self.inputs[1:]
        for _ in self.channels:
            size = tuple(side - self.kernel + 1 for side in size)
            if any(side < 2 or side % 2 for side in size):
                raise ValueError(f"{self}: a convolution's output of {size} cannot be halved")
            size = tuple(side // 2 for side in size)

    @property
    def planes(self) -> tuple[int, ...]:
        """Channels before and after each convolution."""
        return (self.inputs[0], *self.channels)

    @property
    def features(self) -> int:
        """The number of inputs of the first fully connected layer."""
        if not self.channels:
            return int(torch.Size(self.inputs).numel())
        height, width = self.inputs[1:]
        for _ in self.channels:
            height, width = (height - self.kernel + 1) // 2, (width - self.kernel + 1) // 2
        return self.channels[-1] * height * width

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers before and after each fully connected layer."""
        return (self.features, *self.hidden, self.outputs)

    @property
    def multiply_adds(self) -> int:
        """The multiply-adds of one sample's forward pass, counted as written."""
        total, (height, width) = 0, self.inputs[1:] if self.channels else (0, 0)
        for before, after in pairwise(self.planes if self.channels else ()):
            height, width = height - self.kernel + 1, width - self.kernel + 1
            total += height * width * before * after * self.kernel**2
            height, width = height // 2, width // 2
        return total + sum(before * after for before, after in pairwise(self.widths))


#: One place to add another network: data set -> architecture.
ARCHITECTURES: dict[str, Architecture] = {
    "mnist": Architecture((1, 28, 28), (10, 20), (50,), 10),
    "cifar10": Architecture((3, 32, 32), (10, 20), (500, 500), 10),
    "sarcos": Architecture((21,), (), (256, 100), 7),
    "sarcos-paper": Architecture((21,), (), (256, 100), 7),
    "digits": Architecture((1, 8, 8), (), (64, 32), 10),
    "digits-completion": Architecture((32,), (), (64, 32), 32),
    "wine": Architecture((13,), (), (64, 32), 3),
    "breast-cancer": Architecture((30,), (), (64, 32), 2),
    "diabetes": Architecture((10,), (), (64, 32), 1),
}


class Dropout(nn.Module):
    """Dropout with a mask that is a function of (seed, step, place): any trainer can repeat it."""

    def __init__(self, rate: float, seed: int, place: int) -> None:
        super().__init__()
        self.rate, self.seed, self.place, self.step = rate, torch.tensor([seed]), place, 0

    def forward(self, x: Tensor) -> Tensor:
        """``x``, with some entries zero and the others scaled up while training."""
        if not self.training or self.rate == 0:
            return x
        self.step += 1
        shape, device = tuple(x.shape), x.device
        draw = uniform(
            self.seed.to(device),
            Purpose.DROPOUT + self.place,
            torch.tensor(self.step - 1, device=device),
            shape,
        )
        return x * (draw[0] >= self.rate).to(x.dtype) / (1 - self.rate)


class Network(nn.Module):
    """An architecture as an ordinary module, to be trained by an ordinary loop.

    Batch normalisation stands between a layer and its pooling and ReLU; dropout on the input of
    every fully connected layer that does not read the data itself.

    Args:
        architecture: what to build.
        seed: of the initial weights (torch's own initialisation) and of dropout.
        batch_norm: normalise after every layer but the last.
        dropout: the rate; 0 for none.
    """

    def __init__(
        self, architecture: Architecture, seed: int, batch_norm: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.architecture = architecture
        planes = architecture.planes if architecture.channels else ()
        bias = not batch_norm  # a normalised layer's bias would have no effect
        *inner, last = pairwise(architecture.widths)
        with torch.random.fork_rng(devices=[]):  # torch's own initialisation is overwritten
            self.conv = nn.ModuleList(
                nn.Conv2d(a, b, architecture.kernel, bias=bias) for a, b in pairwise(planes)
            )
            self.fc = nn.ModuleList([*(nn.Linear(a, b, bias) for a, b in inner), nn.Linear(*last)])
        _initialise([*self.conv, *self.fc], seed)
        norm2, norm1 = _norms(batch_norm)
        self.conv_norm = nn.ModuleList(norm2(c) for c in architecture.channels)
        self.fc_norm = nn.ModuleList(norm1(h) for h in architecture.hidden)
        first = 0 if architecture.channels else 1
        self.drop = nn.ModuleList(
            Dropout(dropout if i >= first else 0.0, seed, i) for i in range(len(self.fc))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits, or the predicted tasks."""
        return self.hidden(x)[-1]

    def hidden(self, x: Tensor) -> list[Tensor]:
        """The activations of every hidden fully connected layer, and the output last."""
        for conv, norm in zip(self.conv, self.conv_norm, strict=True):
            x = max_pool2d(norm(conv(x)), 2).relu()
        x, outputs = x.flatten(1), []
        for fc, norm, drop in zip(self.fc[:-1], self.fc_norm, self.drop[:-1], strict=True):
            x = norm(fc(drop(x))).relu()
            outputs.append(x)
        return [*outputs, self.fc[-1](self.drop[-1](x))]


def _norms(batch_norm: bool) -> tuple[Callable[[int], nn.Module], Callable[[int], nn.Module]]:
    if not batch_norm:
        return (lambda n: nn.Identity()), (lambda n: nn.Identity())
    return (
        lambda n: nn.BatchNorm2d(n, eps=BN_EPS, momentum=BN_MOMENTUM),
        lambda n: nn.BatchNorm1d(n, eps=BN_EPS, momentum=BN_MOMENTUM),
    )


@torch.no_grad()
def _initialise(layers: list[nn.Module], seed: int) -> None:
    """Torch's default distribution, from a generator of our own: U(±1/√fan_in)."""
    draw = generator(seed, Purpose.WEIGHTS)
    for layer in layers:
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        bound = layer.weight[0].numel() ** -0.5
        shapes = layer.weight.shape, layer.weight.shape[:1]
        weight, bias = (torch.empty(s).uniform_(-bound, bound, generator=draw) for s in shapes)
        layer.weight.copy_(weight)
        if layer.bias is not None:  # drawn in any case: paired networks share what they can
            layer.bias.copy_(bias)
