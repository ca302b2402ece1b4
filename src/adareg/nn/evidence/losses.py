"""A check that the training loss is the one that a likelihood stands for."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from adareg.core.evidence.likelihood import Likelihood
from adareg.nn.evidence.tracing import logits as logits_of

#: Of samples that a classifier predicts with a higher probability little but rounding is seen.
_CERTAIN = 0.999


def watch_loss(model: nn.Module, likelihood: Likelihood, sign: int) -> list[RemovableHandle]:
    """Look at the gradient at the outputs of the next training batch, once.

    Args:
        model: is called by the training.
        likelihood: says which gradients fit.
        sign: −1 where the loss is maximized.

    Returns:
        Hooks, which a backward pass ends with a ValueError if the gradient does not fit.
    """

    def check(gradient: Tensor, outputs: Tensor) -> None:
        handle.remove()
        telling = _telling(sign * gradient.detach(), outputs)
        if telling.isfinite().all() and len(telling) and not likelihood.fits_gradient(telling):
            raise ValueError(
                f"likelihood={likelihood.name!r} does not fit the training loss: the gradient at "
                f"the outputs is not that of {likelihood.loss_name}"
            )

    def see(module: nn.Module, args: Any, outputs: Any) -> None:
        found = logits_of(outputs)
        if module.training and isinstance(found, Tensor) and found.requires_grad:
            found.register_hook(partial(check, outputs=found.detach()))

    handle = model.register_forward_hook(see)
    return [handle]


def _telling(gradient: Tensor, outputs: Tensor) -> Tensor:
    """Return the gradients of samples that show what the loss is.

    Not those of samples of which a classifier is certain: their ``p − y`` is rounding.
    """
    if gradient.ndim < 2:
        return gradient
    g, p = gradient.flatten(0, -2), outputs.double().softmax(-1).flatten(0, -2)
    certain = (p.amax(-1) > _CERTAIN) & ((g < 0).sum(-1) <= 1)
    return g[~certain]
