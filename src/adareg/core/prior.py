"""The matrix-variate normal prior and what a training loop needs of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adareg.core.linalg import factor_dtype, result_dtype
from adareg.core.precision import Precision


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

    @classmethod
    def identity(cls, weight: Tensor) -> MatrixNormal:
        """Ωr = I, Ωc = I for ``weight`` (…, p, d): where training starts."""
        *batch, p, d = weight.shape
        like = (tuple(batch), factor_dtype(weight), weight.device)
        return cls(Precision.identity(p, *like), Precision.identity(d, *like))

    @property
    def shape(self) -> torch.Size:
        """The shape (…, p, d) of the weights it is a prior for."""
        return self.row.shape[:-1] + self.col.shape[-1:]

    def to(self, *args: Any, **kwargs: Any) -> MatrixNormal:
        """The same prior with its factors moved or cast, like ``Tensor.to``."""
        return MatrixNormal(self.row.to(*args, **kwargs), self.col.to(*args, **kwargs))

    def penalty(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…)
        """``tr(Ωr W Ωc Wᵀ)``, differentiable in ``weight``; the strength λ is not in it.

        Value and gradient come from one structured product, made here; ``backward`` only
        scales it. Half precision weights give a float32 result.

        >>> import adareg, torch
        >>> prior = adareg.MatrixNormal.identity(torch.zeros(2, 2))
        >>> prior.penalty(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor(30.)
        """
        W = self._cast(weight)
        value, _ = _Quadratic.apply(W, *self.row.factors, *self.col.factors)  # type: ignore[no-untyped-call]
        return value.to(result_dtype(weight))

    def gradient(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…, p, d)
        """``2·Ωr W Ωc``, the gradient of :meth:`penalty`, in the dtype of the factors."""
        return self._map(weight, lambda ab: 2 * ab)

    def proximal(self, weight: Tensor, step: float | Tensor) -> Tensor:  # (…, p, d) -> (…, p, d)
        """``argmin_X ½‖X − W‖² + step·tr(Ωr X Ωc Xᵀ)``: a step that is stable at any size.

        In the two eigenbases each entry is divided by ``1 + 2·step·aᵢ·bⱼ``. For a learning
        rate η and a strength λ take ``step = η·λ``.
        """
        return self._map(weight, lambda ab: 1 / (1 + 2 * step * ab)).to(weight.dtype)

    def objective(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…)
        """``tr(Ωr W Ωc Wᵀ) − d·logdet Ωr − p·logdet Ωc``, which the rules minimise (equ:opt)."""
        p, d = self._check(weight).shape[-2:]
        trace = self.penalty(weight.to(factor_dtype(weight)))
        logdets = d * self.row.logdet() + p * self.col.logdet()
        return (trace - logdets).to(result_dtype(weight))

    def log_prob(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…)
        """Log density of the prior at ``weight``: ``−½·(objective + p·d·log 2π)``."""
        p, d = weight.shape[-2:]
        return -0.5 * (self.objective(weight) + p * d * math.log(2 * math.pi))

    def _map(self, weight: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        with _exact(weight):
            return _spectral_map(self._cast(weight), self.row, self.col, f)

    def _cast(self, weight: Tensor) -> Tensor:
        return self._check(weight).to(self.row.basis.dtype)

    def _check(self, weight: Tensor) -> Tensor:
        if weight.shape[-2:] != self.shape[-2:]:
            raise ValueError(
                f"weight has shape {tuple(weight.shape)}, the prior is for {tuple(self.shape)}"
            )
        return weight


def _exact(weight: Tensor) -> torch.autocast:
    """Keep autocast from lowering the precision of the products inside."""
    return torch.autocast(weight.device.type, enabled=False)


def _coordinates(W: Tensor, row: Precision, col: Precision) -> tuple[Tensor, Tensor]:
    """W in both eigenbases, and the eigenvalue aᵢ·bⱼ of the prior at each coordinate."""
    coordinates = col.split(row.split(W).mT).mT
    return coordinates, row.spectrum().unsqueeze(-1) * col.spectrum().unsqueeze(-2)


def _merge(coordinates: Tensor, row: Precision, col: Precision) -> Tensor:
    return row.merge(col.merge(coordinates.mT).mT)


def _spectral_map(
    W: Tensor, row: Precision, col: Precision, f: Callable[[Tensor], Tensor]
) -> Tensor:
    """Multiply each coordinate of W by ``f(aᵢ·bⱼ)``, and come back."""
    coordinates, ab = _coordinates(W, row, col)
    return _merge(f(ab) * coordinates, row, col)


class _Quadratic(torch.autograd.Function):
    """``W, Ωr, Ωc -> tr(Ωr W Ωc Wᵀ), Ωr W Ωc``.

    The product is an output so that ``backward`` can use it, and so that a second backward
    flows through it: the gradient of the value is twice the other output.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        W: Tensor, cr: Tensor, Br: Tensor, er: Tensor, cc: Tensor, Bc: Tensor, ec: Tensor
    ) -> tuple[Tensor, Tensor]:
        row, col = Precision(cr, Br, er), Precision(cc, Bc, ec)
        with _exact(W):
            coordinates, ab = _coordinates(W, row, col)
            weighted = ab * coordinates
            value = (weighted * coordinates).sum((-2, -1), dtype=torch.float64)
            return value.to(W.dtype), _merge(weighted, row, col)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1], *inputs[1:])

    @staticmethod
    def backward(
        ctx: Any, grad_value: Tensor | None, grad_product: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        product, cr, Br, er, cc, Bc, ec = ctx.saved_tensors
        grad = None
        if grad_value is not None:
            grad = 2 * grad_value[..., None, None] * product
        if grad_product is not None:
            with _exact(grad_product):
                row, col = Precision(cr, Br, er), Precision(cc, Bc, ec)
                through = _spectral_map(grad_product, row, col, lambda ab: ab)
            grad = through if grad is None else grad + through
        return grad, None, None, None, None, None, None
