"""The matrix-variate normal prior: penalty, gradient, proximal step, objective, density."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from adareg.core.linalg import (
    dot,
    factor_dtype,
    is_sharded,
    lengthwise,
    result_dtype,
    times,
    whole,
    without_autocast,
)
from adareg.core.precision import Precision
from adareg.core.product import LinearMap, Maps, is_transforming


@dataclass(frozen=True, eq=False)
class MatrixNormal:
    """The prior ``W ~ MN(0, Ωr⁻¹, Ωc⁻¹)`` on a weight with p rows (outputs) and d columns (fan-in).

    Equivalently ``vec(W) ~ N(0, Ωc⁻¹ ⊗ Ωr⁻¹)``. Leading dimensions are a batch of independent
    priors, for example the groups of a grouped convolution.

    Args:
        row: the precision Ωr of the rows, (…, p, p).
        col: the precision Ωc of the columns, (…, d, d).
    """

    row: Precision
    col: Precision
    maps: Maps = field(init=False, repr=False)
    """Its product with a weight and its proximal step, in their cheapest forms."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "maps", Maps(self.row, self.col))

    @classmethod
    def identity(cls, weight: Tensor) -> MatrixNormal:
        """Return Ωr = I, Ωc = I for ``weight`` (…, p, d), the prior that training starts from."""
        *batch, p, d = weight.shape
        like = (tuple(batch), factor_dtype(weight), weight.device)
        return cls(Precision.identity(p, *like), Precision.identity(d, *like))

    @property
    def shape(self) -> torch.Size:
        """The shape (…, p, d) of the weights it is a prior for."""
        return self.row.shape[:-1] + self.col.shape[-1:]

    def apply(self, f: Callable[[Tensor], Tensor]) -> MatrixNormal:
        """Return it with ``f`` applied to every factor, to move, cast, index or expand them."""
        return MatrixNormal(self.row.apply(f), self.col.apply(f))

    def to(self, *args: Any, **kwargs: Any) -> MatrixNormal:
        """Return it with its factors moved or cast, like ``Tensor.to``."""
        return self.apply(lambda factor: factor.to(*args, **kwargs))

    def copy_(self, other: MatrixNormal) -> None:
        """Overwrite every factor in place, because a captured CUDA graph goes on reading it.

        Raises:
            RuntimeError: the other prior's factors have other shapes.
        """
        if [t.shape for t in self._tensors()] != [t.shape for t in other._tensors()]:
            raise RuntimeError(
                "a CUDA graph holds the prior as it was before its first update; "
                "call update() once before capturing"
            )
        for mine, its in zip(self._tensors(), other._tensors(), strict=True):
            mine.copy_(its)
        self.maps.overwrite(other.maps)

    def penalty(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…)
        """Return ``tr(Ωr W Ωc Wᵀ)``, differentiable in ``weight``; the strength λ is not in it.

        Value and gradient come from one structured product, made here; ``backward`` only
        scales it. Half precision weights give a float32 result. Rounding can reach
        ``eps·‖Ωr‖·‖Ωc‖·‖W‖²``, which shows only in very large weights; :meth:`objective` takes
        the longer way that has no such error.

        >>> import adareg, torch
        >>> prior = adareg.MatrixNormal.identity(torch.zeros(2, 2))
        >>> prior.penalty(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor(30.)
        """
        W, product = self._cast(weight), self.maps.product()
        if torch.compiler.is_compiling():
            value = _traced(W, product)
        else:
            value, _ = _Quadratic.apply(W, type(product), *product.factors)  # type: ignore[no-untyped-call]
        return value.to(result_dtype(weight))

    def product(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…, p, d)
        """Return ``Ωr W Ωc``, half the gradient of :meth:`penalty`, in the dtype of the factors."""
        return self.maps.product()(self._cast(weight))

    def add_product(self, total: Tensor, weight: Tensor, factor: float) -> Tensor:
        """Return ``total + factor·Ωr W Ωc``, in the dtype of ``total``."""
        return self.maps.product().add(total, self._cast(weight), factor)

    def gradient(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…, p, d)
        """Return ``2·Ωr W Ωc``, the gradient of :meth:`penalty`, in the dtype of the factors.

        Precisions of 1e3 beside 1e-3 amplify rounding a million times. With float32 factors
        (weights of more than 262,144 entries) the answer is the exact one for a weight that
        differs from ``weight`` in its last two bits, which an optimizer step rounds anyway; with
        float64 factors it has the accuracy of the weight's own dtype.
        """
        return 2 * self.product(weight)

    def proximal(self, weight: Tensor, step: float | Tensor) -> Tensor:  # (…, p, d) -> (…, p, d)
        """Return ``argmin_X ½‖X − W‖² + step·tr(Ωr X Ωc Xᵀ)``, which is stable for any step.

        In the two eigenbases each entry is divided by ``1 + 2·step·aᵢ·bⱼ``. For a learning
        rate η and a strength λ take ``step = η·λ``.
        """
        if not isinstance(step, Tensor) and not step >= 0:
            raise ValueError(f"step={step!r}: expected a number >= 0")
        return self.shrink(weight, step).to(weight.dtype)

    def shrink(self, weight: Tensor, step: float | Tensor) -> Tensor:  # (…, p, d) -> (…, p, d)
        """:meth:`proximal` in the dtype of the factors, for a ``step`` that is valid."""
        return self.maps.shrinkage(step)(self._cast(weight))

    def objective(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…)
        """Return ``tr(Ωr W Ωc Wᵀ) − d·logdet Ωr − p·logdet Ωc``, which rules minimise (equ:opt).

        A sharded weight is gathered for it, and so are the factors.
        """
        if is_sharded(weight):
            return self.apply(whole).objective(whole(weight))
        W = self._cast(weight)
        p, d = W.shape[-2:]
        with without_autocast(W):
            coordinates = self.col.split(self.row.split(W).mT).mT
            ab = self.row.spectrum().unsqueeze(-1) * self.col.spectrum().unsqueeze(-2)
            trace = (ab * coordinates.square()).sum((-2, -1), dtype=torch.float64)
        logdets = d * self.row.logdet() + p * self.col.logdet()
        return (trace - logdets).to(result_dtype(weight))

    def log_prob(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…)
        """Return the log density at ``weight``: ``−½·(objective + p·d·log 2π)``."""
        p, d = weight.shape[-2:]
        return -0.5 * (self.objective(weight) + p * d * math.log(2 * math.pi))

    def _tensors(self) -> list[Tensor]:
        stored = [*self.row.factors, *self.col.factors]
        return [tensor for tensor in stored if tensor is not None]

    def _cast(self, weight: Tensor) -> Tensor:
        if weight.shape[-2:] != (self.row.basis.shape[-2], self.col.basis.shape[-2]):
            raise ValueError(
                f"weight has shape {tuple(weight.shape)}, the prior is for {tuple(self.shape)}"
            )
        return lengthwise(weight).to(self.row.basis.dtype)


def _traced(W: Tensor, product: LinearMap) -> Tensor:
    """Return ``tr(Ωr W Ωc Wᵀ)`` by operations that any compiler follows.

    With its first derivative, which is all that a compiled ``backward`` can ask for; in
    torch.func's transforms with those of every order, for one product more.
    """
    if is_transforming():
        return dot(W, product(W)).to(W.dtype)
    twice = 2 * dot(W, product(W.detach()))
    return (twice - twice.detach() / 2).to(W.dtype)


class _Quadratic(torch.autograd.Function):
    """``W -> tr(Ωr W Ωc Wᵀ), Ωr W Ωc``, for a linear map given as its class and factors.

    The product is an output so that ``backward`` can use it, and so that a second backward
    flows through it: the gradient of the value is twice the other output.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(W: Tensor, kind: type[LinearMap], *factors: Tensor) -> tuple[Tensor, Tensor]:
        product = kind(*factors)(W)
        return dot(W, product).to(W.dtype), product

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, ctx.kind, *factors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1], *factors)
        ctx.save_for_forward(output[1], *factors)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> tuple[Tensor, Tensor]:
        product, *factors = ctx.saved_tensors
        # Torch turns forward mode off here, and a jvp of a jvp would be zero (its issue 197867).
        with forward_ad._set_fwd_grad_enabled(True):
            return 2 * dot(tangent, product).to(product.dtype), ctx.kind(*factors)(tangent)

    @staticmethod
    def backward(
        ctx: Any, grad_value: Tensor | None, grad_product: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        product, *factors = ctx.saved_tensors
        grad = None
        if grad_value is not None:
            grad = times(product, 2 * grad_value)
        if grad_product is not None:
            through = ctx.kind(*factors)(grad_product)
            grad = through if grad is None else grad + through
        return grad, None, *[None] * len(factors)
