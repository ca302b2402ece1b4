"""AdaReg for Lightning: callbacks, and the LightningModule stays as it is.

from adareg.lightning import AdaRegCallback
trainer = lightning.Trainer(callbacks=[AdaRegCallback(layers="model.head")])
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from adareg._callback import (
    Recipe,
    Run,
    Settings,
    WithAdaReg,
    WithEvidence,
    network,
    submodules,
)
from adareg._optional import require
from adareg.nn.regularizer import Regularizer

require("lightning", "2.5", extra="lightning")
from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402


class RegularizerCallback(Callback):
    """What :class:`AdaRegCallback` and :class:`EvidenceCallback` have in common.

    The training is that of ``attach`` in a plain loop, to the last bits. The penalty is added
    inside ``optimizer.step()``, after accumulation, unscaling and clipping:
    ``gradient_clip_val`` clips the gradients of the loss alone, and a step that mixed precision
    skips does nothing. The logged loss is your own, without the penalty.

    Automatic and manual optimization work, with one optimizer or several, and so does plain data
    parallelism. Strategies that shard the selected weights are refused. The state is part of
    Lightning's checkpoints, and training resumes from them exactly; as with a learning rate, the
    settings of the regularizer are then those of the checkpoint.

    Args:
        recipe: what is made when the training starts.
        mode: ``"coupled"`` or ``"proximal"``; see :meth:`adareg.AdaReg.attach`.
        every_n_epochs: set the precisions anew after every so many epochs.
        every_n_steps: the same by steps of the optimizer; not together with the former.
        model: regularize the submodule of this name, as if it were the whole; layers then have
            their names in it.
        optimizer: which of several optimizers, by index or by the name of its class; needed only
            if more than one holds the selected weights.
        log: log the regularizer's ``metrics()`` at the end of every epoch, to any logger.
        prefix: of the logged names; two callbacks in one trainer need two of them.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        mode: str = "coupled",
        every_n_epochs: int | None = None,
        every_n_steps: int | None = None,
        model: str | None = None,
        optimizer: int | str | None = None,
        log: bool = True,
        prefix: str = "adareg/",
    ) -> None:
        self.settings = Settings(
            recipe=recipe,
            mode=mode,
            every_n_epochs=every_n_epochs,
            every_n_steps=every_n_steps,
            model=model,
        )
        self.optimizer = optimizer
        self._logs = log  # Lightning puts a method of its own at self.log
        self.prefix = prefix
        self._run: Run | None = None
        self._loaded: Mapping[str, Any] | None = None

    @property
    def regularizer(self) -> Regularizer:
        """The regularizer of the present training, or of the last one."""
        if self._run is None:
            raise RuntimeError("the regularizer is made when the training starts; call fit first")
        return self._run.regularizer

    @property
    def state_key(self) -> str:
        """The name of its state in a checkpoint."""
        return self._generate_state_key(prefix=self.prefix)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the regularizer, or go on with it, and attach it to the optimizer."""
        self._detach()
        model, epochs = network(self.settings, pl_module), trainer.current_epoch
        self._check_network(model)
        if self._run is None or not self._continues(trainer, model):
            dataset = getattr(trainer.train_dataloader, "dataset", None)
            self._run = Run(self.settings, model, self.settings.recipe.layers, dataset, epochs)
        if self._loaded is not None:
            self._run.load_state_dict(self._loaded)
            self._loaded = None
        optimizer = _choose(trainer.optimizers, self.optimizer, self._run.regularizer)
        self._run.attach(optimizer, epochs)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update, then log; before any checkpoint of this moment is written."""
        run = self._run
        assert run is not None, "on_train_start comes first"
        run.after_epochs(trainer.current_epoch + 1)
        if self._logs:
            pl_module.log_dict(run.metrics(self.prefix), sync_dist=True)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the optimizer."""
        self._detach()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the optimizer, and forget the state of a checkpoint that was only tested."""
        self._detach()
        self._loaded = None

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Warn of a training that is resumed from a checkpoint without the prior's state."""
        found = self.state_key in checkpoint.get("callbacks", {})
        if trainer.state.fn == "fit" and checkpoint.get("global_step", 0) > 0 and not found:
            warnings.warn(
                f"the checkpoint has no state of an {type(self).__name__} with "
                f"prefix={self.prefix!r}; its prior starts anew",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly; tensors and plain values only."""
        if self._loaded is not None:
            return dict(self._loaded)
        return {} if self._run is None else self._run.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, now or as soon as the training starts."""
        if self._run is not None and self._run.attached:
            self._run.load_state_dict(state_dict)
        else:
            self._loaded = state_dict

    def _check_network(self, model: nn.Module) -> None:
        """Raise a ValueError if the regularizer cannot work with this network."""

    def _continues(self, trainer: Trainer, model: nn.Module) -> bool:
        """Return if this is one more fit of the same model by the same trainer."""
        return self.regularizer.model is model and trainer.global_step > 0

    def _detach(self) -> None:
        if self._run is not None:
            self._run.detach()


class AdaRegCallback(WithAdaReg, RegularizerCallback):
    """Trains with a learned matrix-normal prior: ``loss + λ·Σ tr(Ωr W Ωc Wᵀ)``.

    The loss is meant to be a mean over samples. See :class:`RegularizerCallback` for what it does
    in a training.

    Args:
        layers: as for :class:`adareg.AdaReg`; names are those in the LightningModule, for
            example ``"model.head"``, or in its submodule ``model``.
        strength: λ > 0, or ``"auto"`` for 1/(2n), n being ``n_samples``.
        bounds: smallest and largest eigenvalue (u, v) of every precision.
        rule: ``"alternating"``, ``"joint"`` or ``"official"``.
        n_samples: size of the training set, for ``strength="auto"``; the length of the train
            dataloader's dataset unless given.
        options: keyword arguments of :class:`RegularizerCallback`. Updates come after every epoch
            unless something else is asked for.

    >>> AdaRegCallback(layers="model.head", strength="auto", mode="proximal").state_key
    "AdaRegCallback{'prefix': 'adareg/'}"
    """


class EvidenceCallback(WithEvidence, RegularizerCallback):
    """Trains with priors that are learned from the data; see :class:`adareg.EvidenceReg`.

    See :class:`RegularizerCallback` for what it does in a training. Its argument ``model`` is the
    submodule with which ``training_step`` makes outputs from inputs: ``"net"`` for
    ``self.net(x)``, nothing for ``self(x)``.

    Args:
        likelihood: what the loss is, as for :class:`adareg.EvidenceReg`.
        layers: as for :class:`adareg.EvidenceReg`.
        loss_scale: likewise.
        n_samples: size of the training set; the length of the train dataloader's dataset unless
            given.
        data: as for :meth:`adareg.EvidenceReg.attach`: ``(inputs, targets)`` or a loader, in the
            form that the model takes. Needed for regression.
        dropout: as for :class:`adareg.EvidenceReg`.
        options: keyword arguments of :class:`RegularizerCallback`. Updates come after 50 steps and
            whenever their number has grown by 30 %, unless something else is asked for.

    >>> EvidenceCallback("classification").state_key
    "EvidenceCallback{'prefix': 'adareg/'}"
    """

    def _check_network(self, model: nn.Module) -> None:
        """Refuse a model that cannot be called."""
        _refuse_without_forward(model)


def _refuse_without_forward(model: nn.Module) -> None:
    name = getattr(model.forward, "__qualname__", "")
    if name in ("LightningModule.forward", "_forward_unimplemented"):
        raise ValueError(
            f"an update calls the network, and {type(model).__name__} has no "
            f"forward(); give model=<the submodule that training_step calls> "
            f"({submodules(model)}), or define forward() and call self(…)"
        )


def _choose(
    optimizers: Sequence[Optimizer], wanted: int | str | None, reg: Regularizer
) -> Optimizer:
    """The optimizer with this index or class name; without one, that which holds the weights."""
    names = [type(optimizer).__name__ for optimizer in optimizers]
    choices = ", ".join(f"{index} ({name})" for index, name in enumerate(names))
    if wanted is None:
        found = [o for o in optimizers if _holds(o, reg)] if len(optimizers) > 1 else optimizers
        what = f"the weights of {', '.join(reg.layers)}"
    else:
        found = [o for i, o in enumerate(optimizers) if wanted in (i, names[i])]
        what = f"optimizer={wanted!r}"
    if len(found) == 1:
        return found[0]
    if wanted is None and not found:
        raise ValueError(
            f"no optimizer holds {what} all at once; there are {choices}. Use one callback, with "
            f"its own layers and prefix, for each optimizer"
        )
    number = "none" if not found else "more than one"
    raise ValueError(f"{what}: {number} of the optimizers {choices} fits; give optimizer=<index>")


def _holds(optimizer: Optimizer, reg: Regularizer) -> bool:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return all(id(p) in held for layer in reg.layers.values() for p in layer.parameters)
