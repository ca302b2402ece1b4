"""AdaReg for Hugging Face Transformers: callbacks for the Trainer, nothing to subclass.

Use it so::

    from adareg.transformers import AdaRegCallback
    trainer = Trainer(model, args, train_dataset=data, callbacks=[AdaRegCallback()])
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from torch import nn
from torch.optim import Optimizer

from adareg._callback import Recipe, Run, Settings, WithAdaReg, WithEvidence, network
from adareg._optional import require
from adareg.nn.attach import innermost
from adareg.nn.regularizer import Regularizer
from adareg.nn.select import Selection

require("transformers", "4.49", extra="transformers")
require("accelerate", "1.0", extra="transformers")
from transformers import (  # noqa: E402
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)


def find_head(model: nn.Module) -> Selection:
    """The output layer of a Transformers model, as a selection for :class:`adareg.AdaReg`.

    Of a language model it is the layer that makes the logits of the tokens. Of a classifier it is
    the last trainable linear layer with ``config.num_labels`` outputs: BERT's ``classifier``,
    RoBERTa's ``classifier.out_proj``, GPT-2's ``score``. Of any other model it is ``"last"``.
    """
    config = getattr(model, "config", None)
    if config is None:
        return "last"
    of_tokens = getattr(model, "get_output_embeddings", lambda: None)()
    if isinstance(of_tokens, nn.Module):
        return of_tokens
    wanted = getattr(config, "num_labels", None)
    heads = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and module.out_features == wanted
        and module.weight.requires_grad
    ]
    return heads[-1] if heads else "last"


class RegularizerCallback(TrainerCallback):
    """What :class:`AdaRegCallback` and :class:`EvidenceCallback` have in common.

    The training is that of ``attach`` in a plain loop, to the last bits. The penalty is added
    inside ``optimizer.step()``, after accumulation, unscaling and clipping: ``max_grad_norm``
    clips the gradients of the loss alone, ``grad_norm`` and the logged loss are without the
    penalty, and a step that mixed precision skips does nothing. Strategies that shard the selected
    weights are refused.

    The state goes into the Trainer's checkpoints with that of the optimizer (``optimizer.pt``),
    wherever they are moved, and training resumes from them exactly; as with a learning rate, the
    settings of the regularizer are then those of the checkpoint.

    The Trainer serves ``report_to`` before the callbacks it is given, so what they log gets to its
    own log history and progress bar alone. :meth:`add_to` puts this one first.

    Args:
        recipe: what is made when the training starts.
        mode: ``"coupled"`` or ``"proximal"``; see :meth:`adareg.AdaReg.attach`.
        every_n_epochs: set the precisions anew after every so many epochs.
        every_n_steps: the same by optimizer steps; needed if the training set has no length.
        model: regularize the submodule of this name, as if it were the whole; layers then have
            their names in it.
        log: add the regularizer's ``metrics()`` to what the Trainer logs of the training.
        prefix: of the logged names; two callbacks in one Trainer need two of them.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        mode: str = "coupled",
        every_n_epochs: int | None = None,
        every_n_steps: int | None = None,
        model: str | None = None,
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
        self.log = log
        self.prefix = prefix
        self._run: Run | None = None
        self._saving: Any = None
        self._first = False

    @property
    def regularizer(self) -> Regularizer:
        """The regularizer of the present training, or of the last one."""
        if self._run is None:
            raise RuntimeError("the regularizer is made when the training starts; call train first")
        return self._run.regularizer

    def add_to(self, trainer: Trainer) -> None:
        """Add it before all other callbacks of a trainer, so that ``report_to`` gets its numbers.

        Instead of ``Trainer(..., callbacks=[...])``, or after it.
        """
        others = [c for c in trainer.callback_handler.callbacks if c is not self]
        trainer.callback_handler.callbacks = [self, *others]
        self._first = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the regularizer, or restore it, and attach it to the optimizer."""
        self._detach()
        model = network(self.settings, _given("model", state, kwargs))
        loader = _given("train_dataloader", state, kwargs)
        optimizer = innermost(_given("optimizer", state, kwargs))
        if self.settings.epochs is not None and not _has_length(loader):
            raise ValueError("the training set has no length and so no epochs; give every_n_steps")
        chosen = self.settings.recipe.layers
        layers = find_head(model) if chosen == "last" else chosen
        epochs = math.floor(state.epoch or 0)
        self._run = Run(self.settings, model, layers, getattr(loader, "dataset", None), epochs)
        self._restore(optimizer, state)
        self._run.attach(optimizer, epochs)
        self._saving = optimizer.register_state_dict_post_hook(self._save)
        self._warn_of_reporters(args)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Update, before anything is logged or saved; not after a part of an epoch."""
        epoch = state.epoch or 0
        done = math.floor(epoch) if control.should_training_stop else math.ceil(epoch)
        if self._run is not None:
            self._run.after_epochs(done)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the metrics to what is logged of the training, and to the log history."""
        of_training = logs is not None and ("loss" in logs or "train_loss" in logs)
        if self.log and of_training and self._run is not None and self._run.attached:
            metrics = self._run.metrics(self.prefix)
            logs.update(metrics)  # type: ignore[union-attr]  # of_training says it is there
            state.log_history[-1].update(metrics)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the optimizer."""
        self._detach()

    @property
    def _key(self) -> str:
        return f"{type(self).__name__} {self.prefix}"

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        """Put the state where it survives ``load_state_dict`` of an optimizer not yet attached.

        The Trainer loads the optimizer before it calls any callback, and tells callbacks no path.
        Of a state that an optimizer does not know, torch keeps what is in a parameter group.
        """
        assert self._run is not None
        state_dict["param_groups"][0][self._key] = self._run.state_dict()

    def _restore(self, optimizer: Optimizer, state: TrainerState) -> None:
        saved = optimizer.param_groups[0].pop(self._key, None)
        if state.global_step == 0:
            return
        if saved is not None and self._run is not None:
            self._run.load_state_dict(saved)
        else:
            warnings.warn(
                f"the checkpoint has no state of an {type(self).__name__} with "
                f"prefix={self.prefix!r}; its prior starts anew",
                stacklevel=2,
            )

    def _warn_of_reporters(self, args: TrainingArguments) -> None:
        reporters = [name for name in args.report_to or [] if name != "none"]
        if self.log and reporters and not self._first:
            warnings.warn(
                f"the Trainer serves {', '.join(reporters)} before this callback, so its metrics "
                f"do not get there; call callback.add_to(trainer), or give log=False",
                stacklevel=2,
            )

    def _detach(self) -> None:
        if self._run is not None:
            self._run.detach()
        if self._saving is not None:
            self._saving.remove()
        self._saving = None


class AdaRegCallback(WithAdaReg, RegularizerCallback):
    """Trains with a learned matrix-normal prior: ``loss + λ·Σ tr(Ωr W Ωc Wᵀ)``.

    The loss is meant to be a mean over samples. See :class:`RegularizerCallback` for what it does
    in a training.

    Args:
        layers: as for :class:`adareg.AdaReg`, except that ``"last"`` is :func:`find_head`.
        strength: λ > 0, or ``"auto"`` for 1/(2n), n being ``n_samples``.
        bounds: smallest and largest eigenvalue (u, v) of every precision.
        rule: ``"alternating"``, ``"joint"`` or ``"official"``.
        n_samples: size of the training set, for ``strength="auto"``; its length unless given.
        options: keyword arguments of :class:`RegularizerCallback`. Updates come after every epoch
            unless something else is asked for.

    >>> callback = AdaRegCallback(strength="auto", every_n_steps=100)
    """


class EvidenceCallback(WithEvidence, RegularizerCallback):
    """Trains with priors that are learned from the data; see :class:`adareg.EvidenceReg`.

    See :class:`RegularizerCallback` for what it does in a training. Its argument ``model`` is of
    use if the whole returns no ``logits``.

    Args:
        likelihood: what the loss is, as for :class:`adareg.EvidenceReg`.
        layers: as for :class:`adareg.EvidenceReg`, except that ``"last"`` is :func:`find_head`.
        loss_scale: as for :class:`adareg.EvidenceReg`.
        n_samples: size of the training set; its length unless given.
        data: as for :meth:`adareg.EvidenceReg.attach`. Without it the latest batches are used, and
            in regression their ``labels``.
        dropout: as for :class:`adareg.EvidenceReg`.
        options: keyword arguments of :class:`RegularizerCallback`. Updates come after 50 steps and
            whenever their number has grown by 30 %, unless something else is asked for.

    >>> callback = EvidenceCallback("classification")
    """


def _given(name: str, state: TrainerState, arguments: dict[str, Any]) -> Any:
    """Return what a callback is given; transformers 4.49 has what is in use in its state alone."""
    in_use = getattr(state, name, None)
    return arguments.get(name) if in_use is None else in_use


def _has_length(loader: object) -> bool:
    try:
        return len(loader) > 0  # type: ignore[arg-type]  # whether it has one is the question
    except TypeError:
        return False
