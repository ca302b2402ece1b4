"""A check that the training loss is the one that a likelihood stands for."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from adareg.core.evidence.likelihood import Likelihood
from adareg.nn.evidence.tracing import logits as logits_of


def watch_loss(model: nn.Module, likelihood: Likelihood, sign: int) -> list[RemovableHandle]:
    """Look at the gradient at the outputs of the next training batch, once.

    Args:
        model: is called by the training.
        likelihood: says which gradients fit.
        sign: −1 where the loss is maximized.

    Returns:
        Hooks, which a backward pass ends with a ValueError if the gradient does not fit.
    """

    def check(gradient: Tensor) -> None:
        handle.remove()
        if gradient.isfinite().all() and not likelihood.fits_gradient(sign * gradient.detach()):
            raise ValueError(
                f"likelihood={likelihood.name!r} does not fit the training loss: the gradient at "
                f"the outputs is not that of {likelihood.loss_name}"
            )

    def see(module: nn.Module, args: Any, outputs: Any) -> None:
        found = logits_of(outputs)
        if module.training and isinstance(found, Tensor) and found.requires_grad:
            found.register_hook(check)

    handle = model.register_forward_hook(see)
    return [handle]
