"""EvidenceReg: priors whose strengths and shapes are learned from the data."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import SGD, Optimizer

from adareg.core.evidence import constants as usual
from adareg.core.evidence.constants import Constants
from adareg.core.evidence.curvature import Curvature, rank_of
from adareg.core.evidence.dropout import rate, refit_variances
from adareg.core.evidence.likelihood import Likelihood, as_likelihood
from adareg.core.evidence.update import Update, scale, start, unit_of, update_priors
from adareg.core.linalg import NonFiniteError, is_sharded
from adareg.core.precision import Precision
from adareg.core.prior import MatrixNormal
from adareg.nn.alarm import is_power_of_two
from adareg.nn.arguments import check_n_samples
from adareg.nn.attach import Attachment
from adareg.nn.distributed import follow_first
from adareg.nn.evidence import tracing
from adareg.nn.evidence.batches import each, sample, size, take
from adareg.nn.evidence.correlations import Correlations, draw_correlations
from adareg.nn.evidence.dropout import Dropout, sensitivities, suited
from adareg.nn.evidence.losses import watch_loss
from adareg.nn.evidence.sources import Given, Recent, Source
from adareg.nn.regularizer import Regularizer
from adareg.nn.schedule import Growing, Never, Schedule
from adareg.nn.select import Layer, Selection, unwrapped
from adareg.nn.state import Form, any_rank

#: Of so small batches that more are needed, each is remembered.
_FAR = 20


class EvidenceReg(Regularizer):
    """A matrix-normal prior on every layer, whose strength and shape are learned from the data.

    Training minimises ``loss + λ·Σ tr(Ωr W Ωc Wᵀ)``, and there is nothing to choose: every
    :meth:`update` sets each layer's precisions to those that fit the posterior of its weight,
    and λ to the noise that the residuals show. See :doc:`evidence`.

    A sidecar: the model's parameters, keys, hooks and pickling stay as they are.

    Args:
        model: any module whose outputs are a tensor (samples, K), or an object or dict with one
            named ``logits``.
        n_samples: size of the training set.
        likelihood: what the loss is: ``"classification"`` for the mean cross-entropy, the outputs
            being the logits of K classes, or with one output of two; ``"regression"`` for
            ``nn.MSELoss()``, the mean over samples *and* targets; or an object of a class of
            your own, see :class:`adareg.Likelihood`.
        layers: as for :class:`adareg.AdaReg`.
        loss_scale: the training loss is this many times the one above: K/2 for half the sum
            over K targets, for example.
        dropout: ``"learned"`` for dropout on the inputs of linear layers, at rates that each
            update sets, while it is attached and a layer is in training mode; for
            classification; None for none.
        constants: what is not learned; see :class:`adareg.core.evidence.constants.Constants`.
        process_group: as for :class:`adareg.AdaReg`.

    >>> import adareg, torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> reg = adareg.EvidenceReg(model, 100, "classification")
    >>> reg
    EvidenceReg(n_samples=100, likelihood='classification', layers={'0': (8, 4), '2': (3, 8)})
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> handle = reg.attach(optimizer)  # the loop stays as it is
    """

    def __init__(
        self,
        model: nn.Module,
        n_samples: int,
        likelihood: str | Likelihood,
        layers: Selection = "all",
        loss_scale: float = 1.0,
        *,
        dropout: str | None = None,
        constants: Constants | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.n_samples = check_n_samples(n_samples)
        self.likelihood = as_likelihood(likelihood)
        self.loss_scale = check_loss_scale(loss_scale)
        self.dropout = check_dropout(dropout)
        if dropout is not None and not self.likelihood.suits_dropout:
            raise ValueError(
                f"dropout={dropout!r} is for classification: with likelihood="
                f"{self.likelihood.name!r} it can take over the network"
            )
        self.constants = constants or usual.DEFAULTS
        self.noise: Tensor | None = None
        if not self.likelihood.needs_targets:
            self.noise = self.likelihood.initial_noise(None, self.constants)
        self.updates, self.waiting = 0, True
        self._outputs = 1
        self._found: dict[str, float] = {}
        self._curvatures: dict[str, Curvature] = {}
        self._source: Source | None = None
        self._unlike: dict[str, bool] | None = None
        super().__init__(model, layers, process_group)
        self._variances = dict.fromkeys([] if dropout is None else suited(self._layers), 0.0)
        self._masks: Dropout | None = None
        if dropout is not None and not self._variances:
            raise ValueError(
                f"dropout={dropout!r}: none of {', '.join(self._layers)} is a linear layer"
            )

    @property
    def strength(self) -> float:
        """λ: what makes the penalty fit the training loss.

        0 while it is waiting, until an update finds that the network has learned something.
        Gradients of the loss can be so small before, in a deep network as torch starts it, that
        Adam would follow any penalty, however weak.
        """
        if self.waiting or self.noise is None:
            return 0.0
        per_nat = float(self.likelihood.loss_per_nat(self.noise, self._outputs))
        share = 1.0 if self.dropout is None else self.constants.beside_dropout
        return share * self.loss_scale * per_nat / (2 * self.n_samples)

    @property
    def default_schedule(self) -> Schedule:
        """After 50 optimizer steps, and whenever their number has grown by 30 %."""
        return Growing(self.constants.first, self.constants.growth)

    def _start(self, weight: Tensor) -> MatrixNormal:
        return start(weight, self.constants.start)

    # Updates

    @torch.inference_mode(False)
    def update(self, inputs: Any = None, targets: Tensor | None = None) -> None:
        """Set every selected layer's precisions, and the noise, from some of the training data.

        Args:
            inputs: some of the training inputs, at best all or 200; a tensor, a tuple or a dict
                of the model's arguments, or an iterable of such batches. Without them, those that
                :meth:`attach` was given or has seen.
            targets: what belongs to the inputs; needed for regression.

        Raises:
            NonFiniteError: a weight or an output is not finite. All precisions stay as they were,
                and training can go on. With several processes, all of them raise.
            RuntimeError: another process failed; likewise.
        """
        self._refuse_shards()
        self._warn_of_capture()
        if self._masks is not None and self.is_attached and self._steps:
            self._masks.warn_if_idle()
        solve, team = partial(self._solve, inputs, targets), self._team()
        if team is None or team.size == 1:
            self._regroup(solve())
        else:
            priors = follow_first(team, solve, self.priors, self._learned, self._take)
            self._regroup(priors)
        self._draw_anew()

    def _solve(self, inputs: Any, targets: Tensor | None) -> dict[str, MatrixNormal]:
        inputs, targets = self._data(inputs, targets)
        layers, priors, model = trained(self._layers), self.priors, unwrapped(self.model)
        weights = finite_weights(layers)
        device = next(iter(weights.values())).device
        generator = torch.Generator("cpu").manual_seed(self.updates)

        def most(some: Any) -> int:
            one = each(take(some, slice(0, 1)), lambda x: x.to(device))
            return min(tracing.samples(model, layers, one, self.constants), self.n_samples)

        inputs, targets = sample(inputs, targets, most, generator, self.constants.samples)
        inputs = each(inputs, lambda x: x.to(device))
        directions = _Directions(self, targets, generator)
        seen = tracing.collect(
            model,
            layers,
            priors,
            inputs,
            directions,
            generator,
            self.constants,
            None if self.updates else directions.begin,
            None if is_power_of_two(self.updates + 1) else self._unlike,
        )
        solved = update_priors(
            weights,
            seen.priors,
            seen.curvatures,
            seen.kernel,
            seen.outputs,
            directions.targets,
            directions.noise,
            self.likelihood,
            self.n_samples,
            seen.normalised,
            self.constants,
        )
        if self.waiting:
            learned = self.constants.learned
            self.waiting = not self.likelihood.has_learned(
                seen.outputs.double(), directions.targets, learned
            )
        variances = self._refit_dropout(inputs, directions, solved)
        self._remember(solved, seen)
        self._variances = variances
        self._warn_of_waiting()
        return {**priors, **{name: layer.prior for name, layer in solved.layers.items()}}

    def _data(self, inputs: Any, targets: Tensor | None) -> tuple[Any, Tensor | None]:
        """Return what an update was given, or else what the source has."""
        if inputs is None and targets is not None:
            raise ValueError("the inputs of these targets are needed: update(inputs, targets)")
        if inputs is None and self._source is None:
            raise RuntimeError(
                "an update needs training inputs: call update(inputs), or attach() first"
            )
        if inputs is None and self._source is not None:
            inputs, targets = self._source.batch()
        if targets is None and self.likelihood.needs_targets:
            raise ValueError(
                f"likelihood={self.likelihood.name!r} learns the noise: give update() the targets"
            )
        return inputs, targets

    def _refit_dropout(
        self, inputs: Any, directions: _Directions, solved: Update
    ) -> dict[str, float]:
        """Return the variance of the noise on each layer's inputs."""
        variances = {n: c for n, c in self._variances.items() if n in solved.layers}
        if self.waiting or not variances:
            return self._variances
        rates = {name: rate(c) for name, c in variances.items()}
        passes = math.ceil(self.constants.samples / size(inputs))
        model = unwrapped(self.model)
        found = sensitivities(
            model, self._layers, rates, inputs, directions.one, directions.generator, passes
        )
        gamma = {name: float(layer.gamma.sum()) for name, layer in solved.layers.items()}
        data = float(solved.leverage)  # a label is one
        return self._variances | refit_variances(variances, found, gamma, data, self.constants)

    def _draw_anew(self) -> None:
        """Have training passes draw at the present rates."""
        if self._masks is not None:
            self._masks.set(self._variances)

    def _remember(self, solved: Update, seen: tracing.Collected) -> None:
        self._outputs, self._curvatures = seen.outputs.shape[-1], seen.curvatures
        self._unlike = seen.unlike
        self.noise = solved.noise.cpu()
        self.updates += 1
        gamma = sum(float(layer.gamma.sum()) for layer in solved.layers.values())
        self._found = {"gamma": gamma, "leverage": float(solved.leverage)}
        if math.isfinite(value := float(solved.log_evidence)):
            self._found["log_evidence"] = value
        for name, layer in solved.layers.items():
            self._found[f"{name}/gamma"] = float(layer.gamma.sum())
            self._found[f"{name}/scale"] = float(scale(layer.prior).log().mean().exp())
            self._found[f"{name}/shape_row"] = _spread(layer.prior.row)
            self._found[f"{name}/shape_col"] = _spread(layer.prior.col)
            self._found[f"{name}/log_evidence"] = float(layer.log_evidence.sum())

    # Inside an optimizer

    def attach(
        self,
        optimizer: Optimizer,
        mode: str = "coupled",
        update_every: int | Schedule | None = None,
        data: Any = None,
    ) -> Attachment:
        """Regularize inside ``optimizer.step()``, and update by a schedule.

        Args:
            optimizer: as for :meth:`adareg.AdaReg.attach`.
            mode: likewise; ``"proximal"`` for SGD alone.
            update_every: likewise; None for an update after 50 optimizer steps and whenever their
                number has grown by 30 %.
            data: ``(inputs, targets)`` of the training set, or an iterable of such pairs, a data
                loader for example. Without it the inputs of the latest training batches are used,
                which is enough for classification, and for regression if the model is called
                with its targets as ``labels=…``.

        Returns:
            A handle; ``handle.remove()`` detaches.
        """
        self._refuse_shards()
        samples = self.constants.samples
        given = None if data is None else Given(data, samples)
        attachment = super().attach(optimizer, mode, update_every)
        sign = -1 if attachment.maximizes else 1
        is_near = partial(self._is_near, attachment.schedule)
        most = min(self.n_samples, samples)
        self._source = given or Recent(most, self.likelihood, sign, is_near)
        attachment.own(self._source.watch(self.model))
        attachment.own(watch_loss(self.model, self.likelihood, sign))
        self._masks = Dropout({name: self._layers[name].module for name in self._variances})
        self._draw_anew()
        attachment.own(self._masks.watch())
        return attachment

    def _is_near(self, schedule: Schedule, steps: int) -> bool:
        """Return if an update is due after so many steps, or may be asked for at any time."""
        if isinstance(schedule, Never) or steps > _FAR:
            return True
        near = range(self._steps + 1, self._steps + steps + 1)
        return any(schedule.is_due(step, self._last_due) for step in near)

    def proximal_rate(self, group: Mapping[str, Any]) -> float | Tensor:
        """Return by how much the gradients of the loss move a weight that is pulled evenly.

        A strength that is learned must meet the loss's gradients as they are, and momentum makes
        more of them.
        """
        rate: float | Tensor = group["lr"]
        return rate * (1 - group["dampening"]) / ((1 - group["momentum"]) or 1)

    def check_proximal(self, optimizer: Optimizer) -> None:
        """Raise a ValueError for an optimizer other than SGD, which rescales gradients."""
        super().check_proximal(optimizer)
        if not isinstance(optimizer, SGD):
            raise ValueError(
                f"EvidenceReg learns how strong the prior is beside the gradients of the loss, and "
                f"{type(optimizer).__name__} rescales them: mode='proximal' needs "
                f"torch.optim.SGD; use mode='coupled'"
            )

    def use_source_of(self, other: EvidenceReg) -> None:
        """Go on with the data that another one has been attached to."""
        self._source = other._source

    # What was learned

    def metrics(self) -> dict[str, float]:
        """Return what to log: the penalty, the state of each layer, and what the last update found.

        To those of :meth:`adareg.AdaReg.metrics` but for the bounds: ``noise`` (variance, or a
        classifier's dispersion), ``leverage`` (what a sample determines of its own prediction),
        ``gamma`` (how many weights the data determine, in all and by layer), ``log_evidence``
        (of the training set, if targets were given, and each layer's share), ``updates``,
        ``waiting`` (1 until the network has learned something, 0 ever after); and for each layer
        ``scale``, the geometric mean of its precisions, and ``shape_row``, ``shape_col``, the
        spread of their logarithms on each side (0 for a scalar prior). With ``dropout="learned"``,
        ``dropout`` is the rate at a layer's inputs.
        """
        own = {"updates": float(self.updates), "waiting": float(self.waiting)}
        own |= {f"{name}/dropout": rate(c) for name, c in self._variances.items()}
        if self.noise is not None:
            own["noise"] = self.likelihood.mean_noise(self.noise)
        return {**super().metrics(), **own, **self._found}

    def correlations(self, name: str) -> Correlations:
        """Return correlations between a layer's rows, of a last layer between classes or tasks.

        Mean and 95 % interval over 400 draws from the posterior that the last update found, fewer
        (100 at least) of a layer with more than 335,000 weights.

        Raises:
            RuntimeError: there was no update yet, in this process.
        """
        if name not in self._layers:
            raise ValueError(
                f"{name!r} is not a layer that is regularized; these are: {', '.join(self._layers)}"
            )
        if name not in self._curvatures:
            raise RuntimeError(f"{name}: no curvature is known yet; call update() first")
        weight, widest = self._layers[name].matrix.detach(), self.constants.widest
        if weight.shape[-2] > widest:
            raise ValueError(
                f"{name} has {weight.shape[-2]:,} rows: correlations are drawn between at most "
                f"{widest:,}"
            )
        curvature, prior = self._curvatures[name], self.priors[name]
        return draw_correlations(weight, prior, curvature, self.n_samples, self.updates)

    # State

    @property
    def _form(self) -> Form:
        return any_rank(partial(rank_of, most=self.constants.rank))

    def _settings(self) -> dict[str, Any]:
        """Return plain values; curvature is not among them, the next update finds it.

        Nor are the batches that an attached one without ``data=`` has seen, so that an update
        right after loading sees fewer samples.
        """
        return {
            "n_samples": self.n_samples,
            "likelihood": self.likelihood.name,
            "loss_scale": self.loss_scale,
            "outputs": self._outputs,
            "updates": self.updates,
            "waiting": self.waiting,
            "noise": json.dumps(None if self.noise is None else self.noise.tolist()),
            "found": json.dumps(self._found),
            "dropout": json.dumps(self._variances),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, its settings included."""
        super().load_state_dict(state)
        self._draw_anew()

    def _read_settings(self, state: Mapping[str, Any]) -> dict[str, Any]:
        if state["likelihood"] != self.likelihood.name:
            raise ValueError(
                f"the state is for likelihood={state['likelihood']!r}, this one has "
                f"{self.likelihood.name!r}"
            )
        noise, variances = json.loads(state["noise"]), json.loads(state["dropout"])
        if set(variances) != set(self._variances):
            raise ValueError(
                f"the state has learned dropout at {', '.join(variances) or 'no layer'}, this one "
                f"at {', '.join(self._variances) or 'no layer'}"
            )
        return {
            "_variances": variances,
            "n_samples": check_n_samples(state["n_samples"]),
            "loss_scale": check_loss_scale(state["loss_scale"]),
            "_outputs": int(state["outputs"]),
            "updates": int(state["updates"]),
            "waiting": bool(state["waiting"]),
            "noise": None if noise is None else _noise(noise),
            "_found": dict(json.loads(state["found"])),
        }

    def _own(self) -> dict[str, Any]:
        return {
            "likelihood": self.likelihood,
            "dropout": self.dropout,
            "_variances": self._variances,
            "_masks": None,
            "constants": self.constants,
            "_curvatures": {},
            "_source": None,
            "_unlike": None,
        }

    def _describe(self) -> str:
        return f"n_samples={self.n_samples}, likelihood={self.likelihood.name!r}"

    # Several processes, captured graphs

    def _learned(self) -> Any:
        """Return what the other processes must know after an update."""
        curvatures = {n: Curvature(*(F.cpu() for F in x)) for n, x in self._curvatures.items()}
        return self._settings(), curvatures

    def _take(self, learned: Any) -> None:
        """Take what :meth:`_learned` returned in the process that made the update."""
        state, curvatures = learned
        vars(self).update(self._read_settings(state))
        devices = {name: layer.weight.device for name, layer in self._layers.items()}
        self._curvatures = {
            n: Curvature(*(F.to(devices[n]) for F in x)) for n, x in curvatures.items()
        }

    def _refuse_shards(self) -> None:
        sharded = [name for name, layer in self._layers.items() if is_sharded(layer.weight)]
        if sharded:
            raise NotImplementedError(
                f"{', '.join(sharded)}: the weight is sharded, and EvidenceReg needs whole ones; "
                f"use AdaReg, or DistributedDataParallel"
            )

    def _warn_of_waiting(self) -> None:
        if self.waiting and self.updates == self.constants.patience:
            warnings.warn(
                f"after {self.updates} updates the network predicts no better than one answer for "
                f"all samples, and the penalty is still off: does it learn, are inputs and "
                f"numeric targets standardised (an optimizer's steps are in the units of its "
                f"weights), and are targets and likelihood={self.likelihood.name!r} those of the "
                f"loss?",
                stacklevel=2,
            )

    def _warn_of_capture(self) -> None:
        if self._captured:
            warnings.warn(
                "a CUDA graph was captured before this update, and still uses the old prior and "
                "strength; capture it anew",
                stacklevel=3,
            )
            self._captured = False


class _Directions:
    """Directions at the outputs of an update's samples, with the targets checked against them."""

    def __init__(
        self, reg: EvidenceReg, targets: Tensor | None, generator: torch.Generator
    ) -> None:
        self._reg, self.targets, self.generator = reg, targets, generator
        self.noise = self._signal = torch.ones(())

    def __call__(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        reg, likelihood = self._reg, self._reg.likelihood
        if self.targets is not None:
            self.targets = likelihood.check_targets(self.targets, outputs)
        noise = reg.noise
        if noise is None:
            noise = likelihood.initial_noise(self.targets, reg.constants)
        self.noise = noise.to(outputs.device)
        self._signal = likelihood.signal(outputs, self.targets, self.noise)
        draws, shared = reg.constants.draws_of(len(outputs)), reg.constants.shared
        return (
            likelihood.directions(outputs, self.noise, draws, self.generator),
            likelihood.shared_directions(outputs, self.noise, shared, self.generator),
        )

    def begin(self, weight: Tensor, curvature: Curvature) -> MatrixNormal:
        """Return the prior of a layer at the first update, in the units of the data."""
        unit = unit_of(curvature, self._signal.to(curvature.inputs.device))
        return start(weight, self._reg.constants.start, unit)

    def one(self, outputs: Tensor) -> Tensor:
        """Return a random direction of each sample, whose second moment is its curvature."""
        (drawn,) = self._reg.likelihood.directions(outputs, self.noise, 1, self.generator)
        return drawn


def _noise(values: Any) -> Tensor:
    """Return the noise of a state, if it can be one; of a covariance some entries are negative."""
    noise = torch.tensor(values, dtype=torch.float64, device="cpu")
    own = noise.diagonal(dim1=-2, dim2=-1) if noise.ndim > 1 else noise
    if not noise.isfinite().all() or not (own > 0).all():
        raise ValueError(f"the state has a noise of {values}: expected positive numbers")
    return noise


def check_loss_scale(loss_scale: float) -> float:
    """Return the scale, if it is a positive number."""
    if not isinstance(loss_scale, int | float) or not 0 < loss_scale < math.inf:
        raise ValueError(f"loss_scale={loss_scale!r}: expected a positive number")
    return float(loss_scale)


def check_dropout(dropout: str | None) -> str | None:
    """Return the kind of dropout, if there is one of this name."""
    if dropout not in (None, "learned"):
        raise ValueError(
            f"dropout={dropout!r}: expected 'learned' or None; a rate of your own is nn.Dropout's"
        )
    return dropout


def trained(layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """Return the layers without those that were frozen later: their priors stay."""
    found = {n: x for n, x in layers.items() if any(p.requires_grad for p in x.parameters)}
    if not found:
        raise ValueError(f"{', '.join(layers)}: the weights are frozen (requires_grad=False)")
    return found


def finite_weights(layers: Mapping[str, Layer]) -> dict[str, Tensor]:
    """Return the weights of layers as matrices.

    Raises:
        NonFiniteError: one is not finite.
    """
    weights = {name: layer.matrix.detach() for name, layer in layers.items()}
    bad = [name for name, W in weights.items() if not W.isfinite().all()]
    if bad:
        raise NonFiniteError(f"{', '.join(bad)}: the weight has NaN or infinite entries")
    return weights


def _spread(precision: Precision) -> float:
    """Return how far a shape is from the identity: the spread of its log eigenvalues."""
    return float(precision.eigenvalues().double().log().std(-1, unbiased=False).mean())
