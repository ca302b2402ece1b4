"""The network: a plain ``nn.Sequential``, and its gradients without autograd.

The networks that scikit-learn users train are so small that most of a step would be spent in
autograd's and torch's bookkeeping. Every loss here is paired with its canonical link, so the
gradient at the outputs is ``prediction − target`` and the rest is a product for each layer. The
same lines work on NumPy arrays that share the parameters' memory, which is fastest on a CPU and
takes sparse inputs as they are, and on tensors everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.special  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

from adareg.sklearn import _data

#: A NumPy array or a tensor; for inputs, a sparse matrix too.
Values = Any


class Functions(NamedTuple):
    """What NumPy and torch call differently."""

    exp: Callable[[Values], Values]
    log: Callable[[Values], Values]
    tanh: Callable[[Values], Values]
    relu_: Callable[[Values], Values]
    sigmoid: Callable[[Values], Values]
    softplus: Callable[[Values], Values]
    xlogy: Callable[[Values, Values], Values]
    row_max: Callable[[Values], Values]


NUMPY = Functions(
    exp=np.exp,
    log=np.log,
    tanh=np.tanh,
    relu_=lambda z: np.maximum(z, 0, out=z),
    sigmoid=scipy.special.expit,
    softplus=lambda z: np.logaddexp(0, z),
    xlogy=scipy.special.xlogy,
    row_max=lambda z: z.max(1, keepdims=True),
)

TORCH = Functions(
    exp=torch.exp,
    log=torch.log,
    tanh=torch.tanh,
    relu_=torch.relu_,
    sigmoid=torch.sigmoid,
    softplus=nn.functional.softplus,
    xlogy=torch.special.xlogy,
    row_max=lambda z: z.amax(1, keepdim=True),
)


class Activation(NamedTuple):
    """A hidden layer's function and, from its values, its derivative.

    The function may write into what it is given: fresh memory costs as much as the sums do.
    """

    module: type[nn.Module]
    value: Callable[[Functions, Values], Values]
    slope: Callable[[Values], Values]


ACTIVATIONS: dict[str, Activation] = {
    "identity": Activation(nn.Identity, lambda f, z: z, lambda h: 1),
    "logistic": Activation(nn.Sigmoid, lambda f, z: f.sigmoid(z), lambda h: h * (1 - h)),
    "tanh": Activation(nn.Tanh, lambda f, z: f.tanh(z), lambda h: 1 - h * h),
    "relu": Activation(nn.ReLU, lambda f, z: f.relu_(z), lambda h: h > 0),
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
        model: made by :func:`build`. The gradients of its parameters become parts of one vector.
        activation: of its hidden layers.
        output: a key of ``OUTPUTS``.
        alpha: strength of the weight decay.

    Attributes:
        gradient: the vector that :meth:`gradients` writes.
    """

    def __init__(self, model: nn.Sequential, activation: str, output: str, alpha: float) -> None:
        parameters = list(model.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        gradient = parameters[0].new_zeros(sum(sizes))
        for parameter, part in zip(parameters, gradient.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        numpy = _data.in_numpy(gradient.device)
        view = Tensor.numpy if numpy else Tensor.detach
        self.gradient = view(gradient)
        self._f = NUMPY if numpy else TORCH
        self._parameters = [view(parameter.detach()) for parameter in parameters]
        grads = [view(p.grad) for p in parameters if p.grad is not None]
        weights, biases = self._parameters[::2], self._parameters[1::2]
        self._layers = list(zip(weights, biases, grads[::2], grads[1::2], strict=True))
        self._ends = np.cumsum(sizes).tolist()
        self._activation = ACTIVATIONS[activation]
        self._output = OUTPUTS[output]
        self._alpha = alpha

    def gradients(self, x: Values, y: Values, weight: Values | None) -> Values:
        """Compute the gradient on a batch; return the value."""
        values = self._forward(x)
        prediction, loss = self._output(self._f, values.pop(), y)
        delta = prediction - y
        if weight is not None:
            loss, delta = loss * weight[:, None], delta * weight[:, None]
        total = len(y) if weight is None else weight.sum()
        self._backward(values, delta / total, self._alpha / total)
        return (loss.sum() + self._alpha / 2 * self._squares()) / total

    def parts(self, vector: Values) -> Iterator[tuple[Values, Values]]:
        """Each parameter, to be written to, and its part of a vector like ``gradient``."""
        start = 0
        for parameter, end in zip(self._parameters, self._ends, strict=True):
            yield parameter, vector[start:end].reshape(parameter.shape)
            start = end

    def _forward(self, x: Values) -> list[Values]:
        """The inputs of every layer, and the outputs of the last."""
        values = [x]
        for i, (W, b, _, _) in enumerate(self._layers):
            if i > 0:
                values[-1] = self._activation.value(self._f, values[-1])
            z = values[-1] @ W.T
            z += b
            values.append(z)
        return values

    def _backward(self, inputs: list[Values], delta: Values, decay: float) -> None:
        for i in reversed(range(len(inputs))):
            W, _, dW, db = self._layers[i]
            dW[:] = delta.T @ inputs[i]
            dW += decay * W
            db[:] = delta.sum(0)
            if i > 0:
                delta = delta @ W
                delta *= self._activation.slope(inputs[i])

    def _squares(self) -> Values:
        flat = [W.reshape(-1) for W, _, _, _ in self._layers]
        return sum(w @ w for w in flat)
