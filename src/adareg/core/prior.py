"""The matrix-variate normal prior and what a training loop needs of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from adareg.core.linalg import (
    add_matmul,
    dot,
    factor_dtype,
    is_sharded,
    is_small,
    lengthwise,
    matmul,
    result_dtype,
    times,
    whole,
    wide,
)
from adareg.core.precision import Precision

#: On a GPU, where each kernel costs more than its arithmetic, priors of up to this many entries
#: ``(p·d)²`` are applied as one matrix on vec(W) instead of by three products.
_WRITTEN_OUT_UP_TO = 2**20


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
    _prepared: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def product_factors(self) -> tuple[Tensor, ...]:
        """What products need, made once: c·S of the shorter side, B and B·(e/c − 1) of the longer.

        Then ``Ωr W Ωc`` is ``c·S·(X + X·B·diag(e/c − 1)·Bᵀ)``, X being W with its shorter side
        first. S is k x k, or 1 x 1 for a multiple of the identity, which saves one product of
        three. A large basis is not doubled: then the third is the row e/c − 1. If all of the
        longer side is in its basis there are two factors, Ωr and Ωc. A tiny prior on a GPU has
        the single factor ``Ωr ⊗ Ωc``.
        """
        if "product" not in self._prepared:
            with torch.inference_mode(False), torch.no_grad(), _exact(self._long.basis):
                self._prepared["product"] = self._make_product_factors(self._is_uniform)
        if self._is_captured_uniform:
            return self._make_product_factors(uniform=False)
        return self._prepared["product"]

    def _make_product_factors(self, uniform: bool) -> tuple[Tensor, ...]:
        if self._is_tiny:
            return (_kron(self.row.dense(), self.col.dense()),)
        if self._is_small and self._long.scale is None:
            return self.row.dense(), self.col.dense()
        c, B = self._long.outside[..., None, None], self._long.basis
        gain = (self._long.values.unsqueeze(-2) - c) / c
        gain = B * gain if self._is_small else gain
        short = self._short.outside[..., None, None] if uniform else self._short.dense()
        return c * short, B, gain

    @property
    def _is_small(self) -> bool:
        """Whether memory does not matter and the number of products does."""
        return not is_sharded(self._long.basis) and (
            self._long.basis.dtype == torch.float64 or is_small(self.shape)
        )

    @property
    def _is_tiny(self) -> bool:
        return (
            self.row.basis.is_cuda
            and not is_sharded(self._long.basis)
            and self.shape.numel() * self.shape[-2:].numel() <= (_WRITTEN_OUT_UP_TO)
        )

    @property
    def _is_uniform(self) -> bool:
        """Whether the shorter side is known to be a multiple of the identity.

        With p far from d it is, after a few updates: all of it lies on the bound v. Looking
        waits for a GPU, so it is done once for each prior; it would not pay for small ones.
        """
        if "uniform" not in self._prepared:
            worth = not self._is_small and not is_sharded(self._long.basis)
            values, outside = self._short.values, self._short.outside.unsqueeze(-1)
            self._prepared["uniform"] = worth and bool((values == outside).all())
        return bool(self._prepared["uniform"])

    @property
    def _is_captured_uniform(self) -> bool:
        """Whether a CUDA graph is being captured that must also serve when this has changed."""
        return (
            self.row.basis.is_cuda
            and self._is_uniform
            and not torch.compiler.is_compiling()
            and torch.cuda.is_current_stream_capturing()
        )

    def shrink_factors(self, step: float | Tensor) -> tuple[Tensor, ...]:
        """What :meth:`proximal` needs for a step size; kept until another step is asked for."""
        if self._is_captured_uniform:
            return self._make_shrink_factors(step, uniform=False)
        if isinstance(step, Tensor):
            return self._make_shrink_factors(step, self._is_uniform)
        if self._prepared.get("step") != step:
            with torch.inference_mode(False), torch.no_grad(), _exact(self._long.basis):
                kept = self._make_shrink_factors(step, self._is_uniform)
            self._prepared.update({"shrink": kept, "step": step})
        return self._prepared["shrink"]

    def _make_shrink_factors(self, step: float | Tensor, uniform: bool) -> tuple[Tensor, ...]:
        if not self._is_tiny:
            return _shrink_factors(self._short, self._long, step, uniform)
        (a, Qr), (b, Qc) = self.row.eigenvectors(), self.col.eigenvectors()
        Q = _kron(Qr, Qc)
        shrink = 1 / (1 + 2 * step * (a.unsqueeze(-1) * b.unsqueeze(-2)).flatten(-2))
        return (matmul(Q * shrink.unsqueeze(-2), Q.mT),)

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

    def apply(self, f: Callable[[Tensor], Tensor]) -> MatrixNormal:
        """``f`` of every factor: moved, cast, indexed or expanded."""
        return MatrixNormal(self.row.apply(f), self.col.apply(f))

    def to(self, *args: Any, **kwargs: Any) -> MatrixNormal:
        """The same prior with its factors moved or cast, like ``Tensor.to``."""
        return self.apply(lambda factor: factor.to(*args, **kwargs))

    def copy_(self, other: MatrixNormal) -> None:
        """Overwrite every factor, as a captured CUDA graph needs it.

        Raises:
            RuntimeError: the other prior's factors have other shapes.
        """
        if [t.shape for t in self._tensors()] != [t.shape for t in other._tensors()]:
            raise RuntimeError(
                "a CUDA graph holds the prior as it was before its first update; "
                "call update() once before capturing"
            )
        _overwrite(self._tensors(), other._tensors())
        if self._is_uniform:  # no graph reads what was prepared for this case
            self._prepared.clear()
            self.product_factors()
            return
        _overwrite(self.product_factors(), other._make_product_factors(uniform=False))
        if "shrink" in self._prepared:
            step = self._prepared["step"]
            _overwrite(self._prepared["shrink"], other._make_shrink_factors(step, uniform=False))

    def penalty(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…)
        """``tr(Ωr W Ωc Wᵀ)``, differentiable in ``weight``; the strength λ is not in it.

        Value and gradient come from one structured product, made here; ``backward`` only
        scales it. Half precision weights give a float32 result. Rounding can reach
        ``eps·‖Ωr‖·‖Ωc‖·‖W‖²``, which shows only in very large weights; :meth:`objective` takes
        the longer way that has no such error.

        >>> import adareg, torch
        >>> prior = adareg.MatrixNormal.identity(torch.zeros(2, 2))
        >>> prior.penalty(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor(30.)
        """
        W, factors = self._cast(weight), self.product_factors()
        if torch.compiler.is_compiling():
            value = _traced(W, *factors)
        else:
            value, _ = _Quadratic.apply(W, *factors)  # type: ignore[no-untyped-call]
        return value.to(result_dtype(weight))

    def product(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…, p, d)
        """``Ωr W Ωc``, half the gradient of :meth:`penalty`, in the dtype of the factors."""
        return _product(self._cast(weight), *self.product_factors())

    def add_product(self, total: Tensor, weight: Tensor, factor: float) -> Tensor:
        """``total + factor·Ωr W Ωc``, in the dtype of ``total``."""
        factors = self.product_factors()
        if len(factors) != 2 or not total.dtype == weight.dtype == factors[0].dtype:
            product = self.product(weight).to(result_dtype(total))
            return total.add(product, alpha=factor).to(total.dtype)
        row, col = factors
        with _exact(weight):
            return add_matmul(total, matmul(row, self._cast(weight)), col, factor)

    def gradient(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…, p, d)
        """``2·Ωr W Ωc``, the gradient of :meth:`penalty`, in the dtype of the factors.

        Precisions of 1e3 beside 1e-3 amplify rounding a million times. With float32 factors
        (weights of more than 262,144 entries) the answer is the exact one for a weight that
        differs from ``weight`` in its last two bits, which an optimizer step rounds anyway; with
        float64 factors it has the accuracy of the weight's own dtype.
        """
        return 2 * self.product(weight)

    def proximal(self, weight: Tensor, step: float | Tensor) -> Tensor:  # (…, p, d) -> (…, p, d)
        """``argmin_X ½‖X − W‖² + step·tr(Ωr X Ωc Xᵀ)``: a step that is stable at any size.

        In the two eigenbases each entry is divided by ``1 + 2·step·aᵢ·bⱼ``. For a learning
        rate η and a strength λ take ``step = η·λ``.
        """
        if not isinstance(step, Tensor) and not step >= 0:
            raise ValueError(f"step={step!r}: expected a number >= 0")
        return self.shrink(weight, step).to(weight.dtype)

    def shrink(self, weight: Tensor, step: float | Tensor) -> Tensor:  # (…, p, d) -> (…, p, d)
        """:meth:`proximal` in the dtype of the factors, for a ``step`` that is valid."""
        W, factors = self._cast(weight), self.shrink_factors(step)
        if len(factors) == 1:
            return _written_out(W, *factors)
        outside, change, *Q = factors
        B = self._long.basis
        with _exact(W):
            X = wide(W)
            inside = matmul(X, B)
            inside = matmul(Q[0], change * matmul(Q[0].mT, inside)) if Q else change * inside
            return _as(W, add_matmul(_times(outside, X), inside, B.mT))

    def objective(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…)
        """``tr(Ωr W Ωc Wᵀ) − d·logdet Ωr − p·logdet Ωc``, which the rules minimise (equ:opt).

        A sharded weight is gathered for it, and so are the factors.
        """
        if is_sharded(weight):
            return self.apply(whole).objective(whole(weight))
        W = self._cast(weight)
        p, d = W.shape[-2:]
        with _exact(W):
            coordinates = self.col.split(self.row.split(W).mT).mT
            ab = self.row.spectrum().unsqueeze(-1) * self.col.spectrum().unsqueeze(-2)
            trace = (ab * coordinates.square()).sum((-2, -1), dtype=torch.float64)
        logdets = d * self.row.logdet() + p * self.col.logdet()
        return (trace - logdets).to(result_dtype(weight))

    def log_prob(self, weight: Tensor) -> Tensor:  # (…, p, d) -> (…)
        """Log density of the prior at ``weight``: ``−½·(objective + p·d·log 2π)``."""
        p, d = weight.shape[-2:]
        return -0.5 * (self.objective(weight) + p * d * math.log(2 * math.pi))

    def _tensors(self) -> list[Tensor]:
        stored = [*self.row.factors, *self.col.factors]
        return [tensor for tensor in stored if tensor is not None]

    @property
    def _short(self) -> Precision:
        return self.row if self._rows_are_short else self.col

    @property
    def _long(self) -> Precision:
        return self.col if self._rows_are_short else self.row

    @property
    def _rows_are_short(self) -> bool:
        p, d = self.shape[-2:]
        return p <= d

    def _cast(self, weight: Tensor) -> Tensor:
        if weight.shape[-2:] != (self.row.basis.shape[-2], self.col.basis.shape[-2]):
            raise ValueError(
                f"weight has shape {tuple(weight.shape)}, the prior is for {tuple(self.shape)}"
            )
        return lengthwise(weight).to(self.row.basis.dtype)


def _exact(weight: Tensor) -> AbstractContextManager[object]:
    """Keep autocast, which leaves float64 alone, from lowering the precision of products."""
    kind = weight.device.type
    if weight.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def _as(W: Tensor, X: Tensor) -> Tensor:
    """X turned back to W's orientation."""
    return X if W.shape[-2] <= W.shape[-1] else X.mT


def _kron(A: Tensor, B: Tensor) -> Tensor:  # (…, p, p), (…, d, d) -> (…, p·d, p·d)
    """``A ⊗ B``, which acts on the rows of W one after another."""
    return (A[..., :, None, :, None] * B[..., None, :, None, :]).flatten(-2).flatten(-3, -2)


def _written_out(W: Tensor, operator: Tensor) -> Tensor:
    """A linear map of W given as a matrix on its entries."""
    return (operator @ W.flatten(-2).unsqueeze(-1)).view(W.shape)


def _product(W: Tensor, *factors: Tensor) -> Tensor:
    """``Ωr W Ωc`` by two or three products of k·p·d multiplications, in three or four kernels."""
    if len(factors) == 1:
        return _written_out(W, *factors)
    if len(factors) == 2:
        row, col = factors
        with _exact(W):
            return matmul(matmul(row, W), col)
    short, B, gain = factors
    with _exact(W):
        X = wide(W)
        inside = matmul(X, gain) if gain.shape == B.shape else matmul(X, B) * gain
        return _as(W, _times(short, add_matmul(X, inside, B.mT)))


def _times(short: Tensor, X: Tensor) -> Tensor:
    """``S·X`` for S of k x k, or a multiple of the identity as 1 x 1."""
    return short * X if short.shape[-1] == 1 else matmul(short, X)


def _overwrite(mine: Iterable[Tensor], theirs: Iterable[Tensor]) -> None:
    for old, new in zip(mine, theirs, strict=True):
        old.copy_(new)


def _traced(W: Tensor, *factors: Tensor) -> Tensor:
    """``tr(Ωr W Ωc Wᵀ)`` with its first derivative, in operations that any compiler follows."""
    product = _product(W.detach(), *factors)
    twice = 2 * (W * product).sum((-2, -1), dtype=torch.float64)
    return (twice - twice.detach() / 2).to(W.dtype)


def _shrink_factors(
    short: Precision, long: Precision, step: float | Tensor, uniform: bool
) -> tuple[Tensor, ...]:
    """``f(a·c)`` of the shorter side, dense; ``f(a·b) − f(a·c)``; and the basis of a.

    With ``f(x) = 1/(1 + 2·step·x)``, eigenvalues a of the shorter side, and b, c in and outside
    the basis of the longer. If all a are equal, the first is 1 x 1 and the basis left out.
    """
    b, c = long.values.unsqueeze(-2), long.outside[..., None, None]
    a, Q = (short.outside.unsqueeze(-1), None) if uniform else short.eigenvectors()
    a = a.unsqueeze(-1)
    outside = 1 / (1 + 2 * step * a * c)
    if Q is None:
        return outside, 1 / (1 + 2 * step * a * b) - outside
    dense = matmul(Q * outside.mT, Q.mT)
    return dense, 1 / (1 + 2 * step * a * b) - outside, Q


class _Quadratic(torch.autograd.Function):
    """``W -> tr(Ωr W Ωc Wᵀ), Ωr W Ωc``, with the factors that :func:`_product` takes.

    The product is an output so that ``backward`` can use it, and so that a second backward
    flows through it: the gradient of the value is twice the other output.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(W: Tensor, *factors: Tensor) -> tuple[Tensor, Tensor]:
        product = _product(W, *factors)
        return dot(W, product).to(W.dtype), product

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1], *inputs[1:])

    @staticmethod
    def backward(
        ctx: Any, grad_value: Tensor | None, grad_product: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        product, *factors = ctx.saved_tensors
        grad = None
        if grad_value is not None:
            grad = times(product, 2 * grad_value)
        if grad_product is not None:
            through = _product(grad_product, *factors)
            grad = through if grad is None else grad + through
        return grad, *[None] * len(factors)
