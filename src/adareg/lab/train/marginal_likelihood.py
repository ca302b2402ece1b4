"""A prior learned by gradient on a KFAC-Laplace marginal likelihood.

Immer, Bauer, Fortuin, Rätsch, Khan, "Scalable Marginal Likelihood Estimation for Model Selection
in Deep Learning", ICML 2021, written anew from the article with the settings of its published
code: one scalar precision for each parameter tensor, ten steps of Adam at rate 0.1 on their
logarithms (and on that of the noise) at every estimate, precisions and noise of one to begin with,
and at the end the weights with the best marginal likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, unfold

from adareg.lab.train.networks import Network

STEPS, RATE = 10, 0.1

#: Training samples from which the marginal likelihood is estimated, at most.
SAMPLES = 256


class MarginalLikelihood:
    """A Gaussian prior on a network without batch normalisation, and the noise of a regression.

    Args:
        network: whose weights are regularized.
        n: training samples.
        task: "classification" or "regression".
    """

    def __init__(self, network: Network, n: int, task: str) -> None:
        self.network, self.n, self.task = network, n, task
        self._names, parameters = zip(*network.named_parameters(), strict=True)
        device = parameters[0].device
        self._log_precision = torch.zeros(len(parameters), dtype=torch.float64, device=device)
        self._log_deviation = torch.zeros((), dtype=torch.float64, device=device)
        learned = [self._log_precision, *([self._log_deviation] if task == "regression" else [])]
        self._optimizer = torch.optim.Adam([each.requires_grad_() for each in learned], RATE)
        self._rates: list[float] = self.decay.tolist()

    @property
    def noise(self) -> float:
        """σ², 1 in classification."""
        return math.exp(2 * self._log_deviation.item())

    @property
    def decay(self) -> Tensor:
        """The factor of each parameter tensor in the gradient of the mean loss.

        The penalty ``δ·‖θ‖²/2`` belongs to the sum of n log-likelihoods; a mean squared error
        over K tasks is ``2σ²/K`` of one.
        """
        scale = 2 * self.noise / self.network.architecture.outputs
        scale = scale if self.task == "regression" else 1.0
        return self._log_precision.detach().exp() * scale / self.n

    def add_gradients(self) -> None:
        """Add the penalty's gradient to that of every parameter."""
        for parameter, rate in zip(self.network.parameters(), self._rates, strict=True):
            assert parameter.grad is not None
            parameter.grad.add_(parameter.detach(), alpha=rate)

    @torch.enable_grad()
    def update(self, x: Tensor, y: Tensor) -> float:
        """Ten steps on the marginal likelihood, estimated from the first of the samples.

        Returns:
            The negative log marginal likelihood; infinity if the weights are not finite, and then
            nothing is changed.
        """
        if not all(bool(p.isfinite().all()) for p in self.network.parameters()):
            return math.inf
        curvature, loss = curvatures(self.network, x[:SAMPLES], y[:SAMPLES], self.task)
        sizes = [curvature[name].numel() for name in self._names]
        each = torch.cat([curvature[name].flatten() for name in self._names])
        owner = torch.arange(len(sizes), device=each.device).repeat_interleave(
            torch.tensor(sizes, device=each.device)
        )
        squares = torch.stack([p.detach().double().square().sum() for p in self._parameters()])
        for _ in range(STEPS):
            self._optimizer.zero_grad()
            value = self._negative(each, owner, squares, loss)
            value.backward()
            self._optimizer.step()
        self._rates = self.decay.tolist()
        return value.item()

    def _parameters(self) -> list[nn.Parameter]:
        return list(self.network.parameters())

    def _negative(self, each: Tensor, owner: Tensor, squares: Tensor, loss: Tensor) -> Tensor:
        """−log p(D | θ) + ½·Σδ‖θ‖² + ½·Σlog(1 + n·λ/δ), up to a constant."""
        precision, likelihood = self._log_precision.exp(), self.n * loss
        if self.task == "regression":
            K, noise = self.network.architecture.outputs, (2 * self._log_deviation).exp()
            normaliser = math.log(2 * math.pi) + 2 * self._log_deviation
            likelihood = self.n * (loss / noise + 0.5 * K * normaliser)
            each = each / noise
        spread = torch.log1p(self.n * each / precision[owner]).sum()
        return likelihood + 0.5 * (precision @ squares) + 0.5 * spread


def curvatures(
    network: Network, x: Tensor, y: Tensor, task: str
) -> tuple[dict[str, Tensor], Tensor]:
    """Eigenvalues of each parameter's Kronecker-factored Gauss-Newton matrix of one sample.

    With a layer's inputs of second moment A (a convolution sums over its positions) and G that of
    the gradients at its outputs (a convolution averages), they are the products of both spectra
    for its weight, and those of G times the positions for its bias. The noise of a regression is
    taken as 1.

    Returns:
        The eigenvalues by parameter, and the mean over samples of the negative log-likelihood
        (of a regression: half the squared error, summed over tasks).
    """
    layers = {k: m for k, m in network.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    with torch.enable_grad(), _hooked(layers, seen), _evaluating(network):
        output = network(x)
        grads = torch.autograd.grad(
            output,
            [seen[name][1] for name in layers],
            _roots(output.detach(), task),
            is_grads_batched=True,
        )
    found = {}
    for (name, layer), grad in zip(layers.items(), grads, strict=True):
        a, g, positions = _rows(layer, seen[name][0].detach(), grad)
        outer = torch.linalg.eigvalsh(g.mT @ g).clamp_min(0) / (len(x) * positions)
        inner = torch.linalg.eigvalsh(a.mT @ a).clamp_min(0) / len(x)
        found[f"{name}.weight"] = outer[:, None] * inner
        found[f"{name}.bias"] = outer * positions
    return found, _loss(output.detach(), y, task)


def _loss(output: Tensor, y: Tensor, task: str) -> Tensor:
    if task == "classification":
        return cross_entropy(output.double(), y)
    return 0.5 * (output - y).double().square().sum(-1).mean()


def _roots(output: Tensor, task: str) -> Tensor:  # (m, K) -> (K, m, K)
    """Directions v whose ``Σ vvᵀ`` is the Hessian of a sample's loss in its outputs."""
    eye = torch.eye(output.shape[-1], dtype=output.dtype, device=output.device)
    if task == "regression":
        return eye.unsqueeze(1).expand(-1, len(output), -1)
    p = output.softmax(-1)
    return p.mT.sqrt().unsqueeze(-1) * (eye.unsqueeze(1) - p)


def _rows(layer: nn.Module, inputs: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, int]:
    """Inputs (N, d) and gradients (N', p) of a layer, and its number of positions."""
    if isinstance(layer, nn.Linear):
        return inputs.double(), grad.flatten(0, 1).double(), 1
    assert isinstance(layer, nn.Conv2d)
    patches = unfold(inputs, layer.kernel_size).mT.flatten(0, 1)
    return patches.double(), grad.movedim(2, -1).flatten(0, -2).double(), grad[0, 0, 0].numel()


@contextmanager
def _hooked(
    layers: Mapping[str, nn.Module], seen: dict[str, tuple[Tensor, Tensor]]
) -> Iterator[None]:
    def remember(name: str) -> Any:
        return lambda module, args, output: seen.update({name: (args[0], output)})

    handles = [layer.register_forward_hook(remember(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(network: Network) -> Iterator[None]:
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)
