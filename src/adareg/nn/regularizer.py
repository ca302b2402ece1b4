"""AdaReg: the regularizer that a training loop holds beside its model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from adareg.core.evidence.likelihood import Likelihood
from adareg.core.evidence.update import start
from adareg.core.linalg import NonFiniteError, is_sharded, local
from adareg.core.prior import MatrixNormal
from adareg.core.rules import solve_all
from adareg.core.spectrum import BOUNDS, check_bounds
from adareg.nn.arguments import (
    STRENGTH,
    check_any_rule,
    check_data,
    check_used,
    is_positive_integer,
    make_evidence,
    resolve_strength,
)
from adareg.nn.attach import MODES, Attachment
from adareg.nn.distributed import Team, follow_first, group_of, solve_together
from adareg.nn.evidence import Correlations, Evidence
from adareg.nn.groups import Group, make_groups, placement
from adareg.nn.metrics import layer_metrics
from adareg.nn.select import Layer, Selection, by_name, select, unwrapped
from adareg.nn.state import dump, load, stored

_FORMAT = 1


class AdaReg:
    """A learned matrix-normal prior on some layers of a model.

    Training minimises ``loss + λ·Σ tr(Ωr W Ωc Wᵀ)`` over the weights; every :meth:`update`
    sets the precisions Ωr, Ωc of each layer in closed form from its weight. The loss is meant
    to be a *mean* over samples. Until the first update Ω = I, which is weight decay of 2λ.

    A sidecar: the model's parameters, keys, hooks and pickling stay as they are.

    Args:
        model: any module. Its selected weights may be float16, bfloat16, float32 or float64,
            on any device; precisions follow the weights.
        layers: ``"last"`` (the paper's choice), ``"fc"``, ``"conv"``, ``"all"``, module names,
            glob patterns, modules, or a list of these; see :func:`adareg.nn.select.select`.
        strength: λ > 0, or ``"auto"`` for ``1/(2·n_samples)``, which makes the penalty the
            prior's share of a maximum a posteriori estimate.
        bounds: smallest and largest eigenvalue (u, v) of every precision.
        rule: ``"alternating"`` (Alg. 1), ``"joint"`` or ``"official"``, see
            :func:`adareg.solve`; or ``"evidence"``, which learns strengths and shapes of all
            layers from the data, needs ``n_samples``, and takes neither strength nor bounds.
        n_samples: size of the training set, for ``strength="auto"`` and ``rule="evidence"``.
        likelihood: for ``rule="evidence"``: ``"classification"`` (the default; outputs are
            logits) or ``"regression"``; see :class:`adareg.nn.evidence.Evidence`.
        loss_scale: for ``rule="evidence"``: the training loss is this many times the mean
            cross-entropy, or ``nn.MSELoss()``.
        process_group: the processes that train this model together; those of the
            DistributedDataParallel model, or all there are, unless given.

    >>> import adareg, torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> reg = adareg.AdaReg(model, strength=1e-4)
    >>> reg
    AdaReg(strength=0.0001, bounds=(0.001, 1000.0), rule='alternating', layers={'2': (3, 8)})
    >>> loss = model(torch.randn(5, 4)).square().mean() + reg.penalty()
    >>> loss.backward()
    >>> reg.update()
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Selection = "last",
        strength: float | str = STRENGTH,
        bounds: tuple[float, float] = BOUNDS,
        rule: str = "alternating",
        *,
        n_samples: int | None = None,
        likelihood: str | Likelihood | None = None,
        loss_scale: float | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.model = model
        self._process_group = process_group
        self.bounds = check_bounds(bounds)
        self._evidence = make_evidence(rule, n_samples, likelihood, loss_scale)
        check_used(rule, strength, self.bounds)
        if self._evidence is None:
            self.strength = resolve_strength(strength, n_samples)
        self.rule = check_any_rule(rule)
        self._layers = {layer.name: layer for layer in select(model, layers)}
        self._regroup({name: self._start(layer.blank) for name, layer in self._layers.items()})
        self._attachment: Attachment | None = None
        self._captured = False
        self._steps = 0

    def _start(self, weight: Tensor) -> MatrixNormal:
        if self._evidence is None:
            return MatrixNormal.identity(weight)
        return start(weight, self._evidence.constants.start)

    @property
    def strength(self) -> float:
        """λ; may be set during training, unless the rule learns it."""
        return self._strength if self._evidence is None else self._evidence.strength

    @strength.setter
    def strength(self, value: float) -> None:
        if self._evidence is not None:
            raise ValueError("rule='evidence' learns the strength; it cannot be set")
        self._strength = resolve_strength(value, None)

    @property
    def layers(self) -> dict[str, Layer]:
        """The selected layers, by name."""
        return dict(self._layers)

    @property
    def priors(self) -> dict[str, MatrixNormal]:
        """The current prior of every selected layer, by name."""
        return self._by_name(self.groups)

    @property
    def evidence(self) -> Evidence | None:
        """What ``rule="evidence"`` keeps beside the priors; None for other rules."""
        return self._evidence

    @property
    def groups(self) -> list[Group]:
        """The selected layers and their priors, batched by shape, where the weights are now."""
        if placement(self._layers.values()) != self._placement:
            self._regroup(self._by_name(self._groups))
        self._notice_capture()
        return self._groups

    def penalty(self) -> Tensor:
        """``λ·Σ tr(Ωr W Ωc Wᵀ)`` over the selected layers: a scalar to add to the loss."""
        terms = [group.prior.penalty(group.matrix).sum() for group in self.groups]
        total = terms[0]
        for term in terms[1:]:
            total = total + term.to(total.device)
        return self.strength * total

    @torch.inference_mode(False)
    def update(self, inputs: Any = None, targets: Tensor | None = None) -> None:
        """Set every selected layer's precisions in closed form from its present weight.

        Args:
            inputs: for ``rule="evidence"`` alone: some of the training inputs, at best all or
                200; a tensor, a tuple or a dict of the model's arguments, or an iterable of
                such batches. Without them, those that :meth:`attach` was given or has seen.
            targets: what belongs to the inputs; needed for regression.

        Raises:
            NonFiniteError: a weight is not finite. It is named, all precisions stay as they
                were, and training can go on. With several processes, all of them raise.
            RuntimeError: another process failed; likewise.
        """
        if self._evidence is not None:
            self._update_evidence(inputs, targets)
            return
        if inputs is not None or targets is not None:
            raise ValueError(f"rule={self.rule!r} looks at the weights alone: call update()")
        groups = {", ".join(layer.name for layer in g.layers): g for g in self.groups}
        weights = {name: group.matrix.detach() for name, group in groups.items()}
        priors = {name: group.prior for name, group in groups.items()}
        solved = self._solve(weights, priors)
        if self._captured:
            for name, group in groups.items():
                group.prior.copy_(solved[name])
        else:
            self._groups = [Group(groups[name].layers, solved[name]) for name in groups]

    def _update_evidence(self, inputs: Any, targets: Tensor | None) -> None:
        learned = self._evidence
        assert learned is not None
        self._refuse_shards()

        def solve() -> dict[str, MatrixNormal]:
            x, y = learned.observed() if inputs is None and targets is None else (inputs, targets)
            if x is None:
                raise ValueError(
                    "rule='evidence' needs the inputs of these targets: update(inputs, y)"
                )
            return learned.update(unwrapped(self.model), self._layers, self.priors, x, y)

        if self._captured:
            warnings.warn(
                "a CUDA graph was captured before this update, and goes on with the old prior and "
                "strength; capture it anew",
                stacklevel=3,
            )
            self._captured = False
        group = group_of(self.model, self._process_group)
        if group is None or group.size() == 1:
            self._regroup(solve())
        else:
            team = Team(group, self._not_finite)
            self._regroup(follow_first(team, solve, self.priors, learned))

    def _refuse_shards(self) -> None:
        sharded = [name for name, layer in self._layers.items() if is_sharded(layer.weight)]
        if sharded:
            raise NotImplementedError(
                f"{', '.join(sharded)}: the weight is sharded, and rule='evidence' needs whole "
                f"ones; use another rule, or DistributedDataParallel"
            )

    def _solve(
        self, weights: dict[str, Tensor], priors: dict[str, MatrixNormal]
    ) -> dict[str, MatrixNormal]:
        group = group_of(self.model, self._process_group)
        if group is not None and (group.size() > 1 or any(map(is_sharded, weights.values()))):
            team = Team(group, self._not_finite)
            return solve_together(weights, priors, self.rule, self.bounds, team)
        try:
            return solve_all(weights, priors, self.rule, self.bounds)
        except NonFiniteError as error:
            raise NonFiniteError(self._name_non_finite()) from error

    def attach(
        self,
        optimizer: Optimizer,
        mode: str = "coupled",
        update_every: int | None = None,
        data: Any = None,
    ) -> Attachment:
        """Regularize inside ``optimizer.step()``, so that the training loop need not change.

        Gradients are met as the optimizer meets them: after accumulation, unscaling and
        clipping; a step that a ``GradScaler`` skips does nothing. As with weight decay, a
        weight without a gradient is left alone. Do not add :meth:`penalty` to the loss as well.

        Without ``update_every`` and without calls of :meth:`update` the prior learns nothing, and
        the penalty stays weight decay of 2λ; ``rule="evidence"`` alone updates unasked.

        Args:
            optimizer: holds every selected weight. One that Accelerate has wrapped may be
                given, too.
            mode: ``"coupled"`` adds the penalty's gradient ``2λ·Ωr W Ωc`` to each weight's own,
                which is the same as adding the penalty to the loss. ``"proximal"`` shrinks the
                weights after the step, exactly and at any learning rate, as AdamW does for
                weight decay; with ``rule="evidence"`` for SGD alone.
            update_every: call :meth:`update` after every so many optimizer steps; ``None``
                leaves it to you, but for ``rule="evidence"``, which then updates after 50 steps
                and whenever their number has grown by 30 %.
            data: for ``rule="evidence"``: ``(inputs, targets)`` of the training set, or an
                iterable of such pairs, a data loader for example. Without it the inputs of the
                latest training batches are used, which is enough for classification, and for
                regression if the model is called with its targets as ``labels=…``.

        Returns:
            A handle; ``handle.remove()`` detaches.

        Raises:
            ValueError: an argument is wrong, the optimizer does not hold a selected weight, or
                the mode cannot work on it.
            RuntimeError: this AdaReg is attached already.
        """
        if mode not in MODES:
            raise ValueError(f"mode={mode!r}: expected one of {', '.join(map(repr, MODES))}")
        if update_every is not None and not is_positive_integer(update_every):
            raise ValueError(f"update_every={update_every!r}: expected a positive integer or None")
        if self._attachment is not None and self._attachment.active:
            raise RuntimeError("this AdaReg is attached already; call remove() on its handle first")
        check_data(self.rule, data)
        handles = []
        if self._evidence is not None:
            self._refuse_shards()
            handles = self._evidence.observe(self.model, data)
        try:
            self._attachment = Attachment(self, optimizer, mode, update_every, handles)
        except Exception:
            for handle in handles:
                handle.remove()
            raise
        return self._attachment

    def counts_updates(self, update_every: int | None) -> bool:
        """Whether some optimizer steps are followed by an update."""
        return update_every is not None or self._evidence is not None

    def count_step(self, update_every: int | None) -> None:
        """Count an optimizer step, and :meth:`update` if it is time."""
        if self.is_due(1, update_every):
            self.update()

    def is_due(self, steps: int, update_every: int | None = None) -> bool:
        """Count optimizer steps, and say whether it is time for an update.

        For a loop that is not attached, or gives :meth:`update` the data itself.
        """
        self._steps += steps
        if self._evidence is not None:
            return self._evidence.is_due(self._steps, update_every)
        return update_every is not None and self._steps % update_every == 0

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """What to log: the penalty, and for each layer the state of weight and prior.

        ``penalty`` is :meth:`penalty`. For each layer: ``stable_rank`` and ``spectral_norm``
        of the weight (of grouped weights the mean and the largest); ``clipped_low`` and
        ``clipped_high``, the share of the precisions' eigenvalues on the bounds u and v; and
        ``effective_weight_decay``, the weight decay that would give the same penalty,
        ``2λ·tr(Ωr W Ωc Wᵀ)/‖W‖²`` (0 for a zero weight).

        With ``rule="evidence"`` there are no bounds and no shares on them. Instead, of the last
        update: ``noise`` (variance, or a classifier's dispersion), ``leverage`` (what a sample
        determines of its own prediction), ``gamma`` (how many weights the data determine, in all
        and by layer), ``log_evidence`` (of the training set, if targets were given, and each
        layer's share), ``updates``, ``waiting`` (1 until the network has learned something, 0
        ever after); and for each layer ``scale``, the geometric mean of its
        precisions, and ``shape_row``, ``shape_col``, the spread of their logarithms on each side
        (0 for a scalar prior).
        """
        metrics = {"penalty": 0.0}
        for name, prior in self.priors.items():
            bounds = self.bounds if self._evidence is None else None
            values = layer_metrics(self._layers[name].matrix, prior, self.strength, bounds)
            keys, numbers = list(values), torch.stack(list(values.values())).tolist()
            penalty, *rest = numbers
            metrics["penalty"] += penalty
            metrics.update({f"{name}/{key}": x for key, x in zip(keys[1:], rest, strict=True)})
        if self._evidence is not None:
            metrics.update(self._evidence.metrics())
        return metrics

    def correlations(self, name: str) -> Correlations:
        """Correlations between a layer's rows, of a last layer between classes or tasks.

        For ``rule="evidence"``: mean and 95 % interval over 400 draws from the posterior that
        the last update found, fewer (100 at least) of a layer with more than 335,000 weights.

        Raises:
            RuntimeError: there was no update yet, in this process.
        """
        if self._evidence is None:
            raise ValueError(
                f"rule={self.rule!r} knows no posterior; adareg.correlation(weight) gives the "
                f"correlations of the weight itself"
            )
        if name not in self._layers:
            raise ValueError(f"{name!r} is no layer of this AdaReg: {', '.join(self._layers)}")
        return self._evidence.correlations(name, self._layers[name], self.priors[name])

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly; tensors and plain values only.

        But for ``rule="evidence"`` without ``data=``: the batches that an attached one has seen
        are not in it, so that an update right after loading sees fewer samples.

        Shapes and keys do not change during training, as ``torch.distributed.checkpoint`` needs
        it. The factors of a sharded weight are sharded, too.
        """
        return {
            "format": _FORMAT,
            "strength": self.strength,
            "bounds": list(self.bounds),
            "rule": self.rule,
            "steps": self._steps,
            "evidence": None if self._evidence is None else self._evidence.state_dict(),
            "priors": dump(self.priors, complete=self._evidence is not None),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, strength, bounds and rule included.

        Raises:
            ValueError: the state is of another model, another selection of layers, or no
                state of an AdaReg at all. Nothing is changed then.
        """
        try:
            if state["format"] != _FORMAT:
                raise ValueError(f"state has format {state['format']!r}, expected {_FORMAT}")
            learned = state.get("evidence")
            learned = None if learned is None else Evidence.from_state(learned)
            bounds, rule = check_bounds(tuple(state["bounds"])), check_any_rule(state["rule"])
            steps, strength = int(state["steps"]), state["strength"]
            factors = stored(state["priors"])
        except (KeyError, TypeError, AttributeError) as error:
            missing = isinstance(error, KeyError)
            reason = f"it has no entry {error.args[0]!r}" if missing else str(error)
            raise ValueError(f"this is not the state of an AdaReg: {reason}") from error
        if (rule == "evidence") != (learned is not None):
            raise ValueError("this is not the state of an AdaReg: rule and evidence disagree")
        strength = 1.0 if learned else resolve_strength(strength, None)
        priors = load(factors, self._layers, complete=learned is not None)
        before = getattr(self, "_evidence", None)
        if learned is not None and before is not None:
            learned.take_over(before)
        self._strength, self.bounds, self.rule, self._evidence = strength, bounds, rule, learned
        self._steps = steps
        self._regroup(priors)

    def __getstate__(self) -> dict[str, Any]:
        """For copy and pickle: the model comes along, an attachment to an optimizer does not."""
        return {
            "model": self.model,
            "layers": list(self._layers),
            "state": self.state_dict(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.model = state["model"]
        self._layers = {layer.name: layer for layer in by_name(self.model, state["layers"])}
        self._attachment, self._captured, self._process_group = None, False, None
        self.load_state_dict(state["state"])

    def __repr__(self) -> str:
        shapes = {name: tuple(layer.blank.shape) for name, layer in self._layers.items()}
        if self._evidence is not None:
            return f"AdaReg(rule={self.rule!r}, {self._evidence}, layers={shapes})"
        return (
            f"AdaReg(strength={self.strength:g}, bounds={self.bounds}, "
            f"rule={self.rule!r}, layers={shapes})"
        )

    def _regroup(self, priors: Mapping[str, MatrixNormal]) -> None:
        self._groups = make_groups(self._layers, priors)
        self._placement = placement(self._layers.values())

    def _by_name(self, groups: Iterable[Group]) -> dict[str, MatrixNormal]:
        priors = {one.layers[0].name: one.prior for group in groups for one in group.singles()}
        return {name: priors[name] for name in self._layers}

    def _notice_capture(self) -> None:
        """A captured graph goes on reading the tensors it saw, so updates must write into them."""
        on_gpu = any(device.type == "cuda" for device, *_ in self._placement)
        if on_gpu and not torch.compiler.is_compiling():
            self._captured = self._captured or torch.cuda.is_current_stream_capturing()

    def _not_finite(self) -> list[str]:
        """The layers whose weight, or this process's part of it, is not finite."""
        return [n for n, x in self._layers.items() if not local(x.weight).isfinite().all()]

    def _name_non_finite(self) -> str:
        bad = self._not_finite()
        reason = "has NaN or infinite entries" if bad else "is so large that its square overflows"
        names = ", ".join(bad or self._layers)
        return f"{names}: the weight {reason}; all precisions are kept as they were"
