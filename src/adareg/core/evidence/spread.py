"""Variances of the outputs at many inputs, from a network's posterior that was folded once.

With one hidden layer a variance is a sum over products of two slopes, or one, times two inputs, or
one, or times values of hidden units (see :mod:`~adareg.core.evidence.shallow`). What they are
multiplied by is the same at all inputs. Any ``tr(D·C)`` of the covariance C of the outputs has
this form, and costs as much as a variance: of one output, or of all differences between classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adareg.core.evidence.arrow import parted
from adareg.core.evidence.perceptron import Linearised, Perceptron, with_one
from adareg.core.evidence.shallow import outer, pairs, upper

#: Samples looked at at once.
_CHUNK = 1024


class Spread:
    """A folded posterior.

    Args:
        network: with one hidden layer.
        w: its weights.
        covariance: of these, (P, P).
        metrics: D, (m, K, K), symmetric.
    """

    def __init__(self, network: Perceptron, w: Tensor, covariance: Tensor, metrics: Tensor) -> None:
        p, e = network.hidden[0], network.inputs + 1
        W = network.split(w)[-2][:, :-1]
        to_hidden, to_own = parted(network, covariance)  # (P, P₁), (P, K, q)
        hidden = parted(network, to_hidden.mT)[0].view(p, e, p, e)
        cross, own = parted(network, to_own.movedim(0, -1))  # (K, q, P₁), (K, q, K, q)
        across = W.mT @ metrics @ W  # (m, p, p)
        both = hidden.transpose(1, 2) * across[..., None, None]  # (m, p, p, e, e)
        once = torch.einsum("mkj,kqje->mjeq", metrics @ W, cross.unflatten(-1, (p, e)))
        own = torch.einsum("mkl,kqlr->mqr", metrics, own)
        order = torch.arange(p, p + e, device=w.device).roll(-1)  # inputs, then the bias
        self._fold(both, once, own, order)

    def _fold(self, both: Tensor, once: Tensor, own: Tensor, order: Tensor) -> None:
        m, p, _, e, _ = both.shape
        products = both.new_zeros(m, p + 1, p + 1, e, e)
        products[:, :p, :p] = both
        products[:, :p, p] = 2 * once[..., order]
        products[:, p, p] = own[:, order][..., order]
        folded = _folded(_folded(products, 1), 2)  # (m, pairs of slopes, pairs of inputs)
        self._products = folded.mT.flatten(0, 1).contiguous()
        with_values = torch.cat([once[..., :p].flatten(1, 2), own[:, order, :p]], 1)
        self._with_values = 2 * with_values.mT.flatten(0, 1).contiguous()  # (m·p, (p + 1)·e)
        self._values = own[:, :p, :p].flatten(0, 1)

    def variances(self, near: Linearised) -> Tensor:  # (n, m)
        """Return ``tr(D·C)`` at all inputs."""
        arrays = with_one(near.values[0]), near.values[1], with_one(near.slopes[0])
        parts = [self._of_part(*x) for x in zip(*(a.split(_CHUNK) for a in arrays), strict=True)]
        return torch.cat(parts).clamp(min=0)

    def _of_part(self, inputs: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
        a, h, s = (x.mT.contiguous() for x in (inputs, values, slopes))
        products = pairs(a)
        found = (self._products @ pairs(s)).view(-1, *products.shape).mul_(products).sum(1)
        beside = (self._with_values @ outer(s, a)).addmm_(self._values, h)
        return (found + beside.view(-1, *h.shape).mul_(h).sum(1)).mT


def _folded(x: Tensor, axis: int) -> Tensor:  # (…, p, p, …) -> (…, p·(p + 1)/2, …)
    """Return sums of an entry with that across the diagonal."""
    x = x.movedim((axis, axis + 1), (0, 1))
    i, j = upper(len(x), x.device)
    found = x[i, j] + x[j, i]
    found[i == j] /= 2
    return found.movedim(0, axis)
