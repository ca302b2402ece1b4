"""The network: a plain ``nn.Sequential``, and its gradients without autograd.

The networks that scikit-learn users train are so small that most of a step would be spent in
autograd's and torch's bookkeeping. Every loss here is paired with its canonical link, so the
gradient at the outputs is ``prediction − target`` and the rest is a product for each layer. The
same lines work on NumPy arrays that share the parameters' memory, which is fastest on a CPU and
takes sparse inputs as they are, and on tensors everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.special  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

#: A NumPy array or a tensor; for inputs, a sparse matrix too.
Values = Any


class Functions(NamedTuple):
    """What NumPy and torch call differently."""

    exp: Callable[[Values], Values]
    log: Callable[[Values], Values]
    tanh: Callable[[Values], Values]
    relu: Callable[[Values], Values]
    sigmoid: Callable[[Values], Values]
    softplus: Callable[[Values], Values]
    xlogy: Callable[[Values, Values], Values]
    row_max: Callable[[Values], Values]


NUMPY = Functions(
    exp=np.exp,
    log=np.log,
    tanh=np.tanh,
    relu=lambda z: np.maximum(z, 0),
    sigmoid=scipy.special.expit,
    softplus=lambda z: np.logaddexp(0, z),
    xlogy=scipy.special.xlogy,
    row_max=lambda z: z.max(1, keepdims=True),
)

TORCH = Functions(
    exp=torch.exp,
    log=torch.log,
    tanh=torch.tanh,
    relu=torch.relu,
    sigmoid=torch.sigmoid,
    softplus=nn.functional.softplus,
    xlogy=torch.special.xlogy,
    row_max=lambda z: z.amax(1, keepdim=True),
)


class Activation(NamedTuple):
    """A hidden layer's function, and the gradient behind it from its value and that before."""

    module: type[nn.Module]
    value: Callable[[Functions, Values], Values]
    slope: Callable[[Values, Values], Values]  # value, gradient -> gradient


ACTIVATIONS: dict[str, Activation] = {
    "identity": Activation(nn.Identity, lambda f, z: z, lambda h, delta: delta),
    "logistic": Activation(
        nn.Sigmoid, lambda f, z: f.sigmoid(z), lambda h, delta: delta * (h * (1 - h))
    ),
    "tanh": Activation(nn.Tanh, lambda f, z: f.tanh(z), lambda h, delta: delta * (1 - h * h)),
    "relu": Activation(nn.ReLU, lambda f, z: f.relu(z), lambda h, delta: delta * (h > 0)),
}


def _softmax(f: Functions, z: Values, y: Values) -> tuple[Values, Values]:
    z = z - f.row_max(z)
    e = f.exp(z)
    total = e.sum(1)[:, None]
    return e / total, f.log(total) - (y * z).sum(1)[:, None]


def _logistic(f: Functions, z: Values, y: Values) -> tuple[Values, Values]:
    return f.sigmoid(z), f.softplus(z) - y * z


def _identity(f: Functions, z: Values, y: Values) -> tuple[Values, Values]:
    return z, (z - y) ** 2 / 2


def _exp(f: Functions, z: Values, y: Values) -> tuple[Values, Values]:
    p = f.exp(z)
    return p, p - y * z + f.xlogy(y, y) - y


#: By output activation: predictions, and the summands of the loss for which their gradient
#: before the activation is ``prediction − target``.
OUTPUTS: dict[str, Callable[[Functions, Values, Values], tuple[Values, Values]]] = {
    "softmax": _softmax,
    "logistic": _logistic,
    "identity": _identity,
    "exp": _exp,
}


def build(
    units: Sequence[int],
    activation: str,
    random: np.random.RandomState,
    dtype: torch.dtype,
) -> nn.Sequential:
    """Layers of the given sizes, drawn by ``random`` as scikit-learn draws them (Glorot)."""
    modules: list[nn.Module] = []
    for fan_in, fan_out in pairwise(units):
        bound = np.sqrt((2 if activation == "logistic" else 6) / (fan_in + fan_out))
        weight = random.uniform(-bound, bound, (fan_in, fan_out)).T
        bias = random.uniform(-bound, bound, fan_out)
        linear = nn.utils.skip_init(nn.Linear, fan_in, fan_out, dtype=dtype)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight))
            linear.bias.copy_(torch.from_numpy(bias))
        modules += [linear, ACTIVATIONS[activation].module()]
    return nn.Sequential(*modules[:-1])


def linears(model: nn.Sequential) -> list[nn.Linear]:
    """The layers that have weights, in order."""
    return [module for module in model if isinstance(module, nn.Linear)]


def layer_units(model: nn.Sequential) -> list[int]:
    """The sizes that :func:`build` was given."""
    layers = linears(model)
    return [layers[0].in_features, *(layer.out_features for layer in layers)]


class Objective:
    """What is minimised, but for the learned prior: mean loss + ``alpha/2n·Σ‖W‖²``, as MLP's.

    n is the number of samples in a batch, or their total weight.

    Args:
        model: made by :func:`build`; its parameters get gradients of their own.
        activation: of its hidden layers.
        output: a key of ``OUTPUTS``.
        alpha: strength of the weight decay.
    """

    def __init__(self, model: nn.Sequential, activation: str, output: str, alpha: float) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        on_cpu = next(model.parameters()).device.type == "cpu"
        self._f = NUMPY if on_cpu else TORCH
        self._view = Tensor.numpy if on_cpu else Tensor.detach
        self._layers = [self._views(layer) for layer in linears(model)]
        self._activation = ACTIVATIONS[activation]
        self._output = OUTPUTS[output]
        self._alpha = alpha

    def _views(self, layer: nn.Linear) -> tuple[Values, Values, Values, Values]:
        """Weight and bias, and where their gradients go."""
        tensors = layer.weight, layer.bias, layer.weight.grad, layer.bias.grad
        W, b, dW, db = (self._view(t.detach()) for t in tensors if t is not None)
        return W, b, dW, db

    def gradients(self, x: Values, y: Values, weight: Values | None) -> Values:
        """Set every parameter's gradient on a batch; return the value."""
        values = self._forward(x)
        prediction, loss = self._output(self._f, values.pop(), y)
        delta = prediction - y
        if weight is not None:
            loss, delta = loss * weight[:, None], delta * weight[:, None]
        total = len(y) if weight is None else weight.sum()
        self._backward(values, delta / total, self._alpha / total)
        return (loss.sum() + self._alpha / 2 * self._squares()) / total

    def _forward(self, x: Values) -> list[Values]:
        """The inputs of every layer, and the outputs of the last."""
        values = [x]
        for W, b, _, _ in self._layers[:-1]:
            values.append(self._activation.value(self._f, values[-1] @ W.T + b))
        W, b, _, _ = self._layers[-1]
        return [*values, values[-1] @ W.T + b]

    def _backward(self, inputs: list[Values], delta: Values, decay: float) -> None:
        for i in reversed(range(len(inputs))):
            W, _, dW, db = self._layers[i]
            dW[:] = delta.T @ inputs[i]
            dW += decay * W
            db[:] = delta.sum(0)
            if i > 0:
                delta = self._activation.slope(inputs[i], delta @ W)

    def _squares(self) -> Values:
        flat = [W.reshape(-1) for W, _, _, _ in self._layers]
        return sum(w @ w for w in flat)
