"""The Lightning callback trains as the plain loop does, whatever the Trainer is told."""

from functools import partial

import pytest
import pytorch_lightning
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, IterableDataset

from adareg import AdaReg
from adareg.lightning import AdaRegCallback, EvidenceCallback
from lightning_training import BATCH, MARKS, STRONG, Batches, Gan, N, Network, fit, module, plain
from training import DEVICES, assert_close, assert_equal, make_data

pytestmark = MARKS


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("every", [{}, {"every_n_steps": 5}])
@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_trains_as_the_plain_loop_does(mode, every, optimizer):
    model = module(optimizer=optimizer)
    fit(model, [AdaRegCallback(**STRONG, mode=mode, **every)])
    assert_equal(model, plain(mode, every=every.get("every_n_steps"), optimizer=optimizer))


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
def test_accumulates_and_clips_as_the_plain_loop_does(mode):
    model = module()
    options = {"accumulate_grad_batches": 3, "gradient_clip_val": 0.05}
    fit(model, [AdaRegCallback(**STRONG, mode=mode)], **options)
    assert_close(model, plain(mode, accumulate=3, clip=0.05), rtol=1e-12, atol=1e-13)
    unclipped = plain(mode, accumulate=3)
    assert not torch.allclose(model.model[2].weight, unclipped.model[2].weight, atol=1e-4)


def test_pytorch_lightning_trainer_takes_it():
    model = module(pytorch_lightning.LightningModule)
    fit(model, [AdaRegCallback(**STRONG)], package=pytorch_lightning)
    assert_equal(model, plain())


def test_every_n_epochs_and_layers_by_name():
    model, callback = module(), AdaRegCallback("model.0", **STRONG, every_n_epochs=3)
    fit(model, [callback], epochs=5)
    assert list(callback.regularizer.layers) == ["model.0"]
    reference = Network()
    sgd, reg = SGD(reference.parameters(), 0.1), AdaReg(reference, "model.0", **STRONG)
    reg.attach(sgd)
    for epoch in range(5):
        for x, y in Batches():
            sgd.zero_grad()
            cross_entropy(reference(x), y).backward()
            sgd.step()
        if epoch == 2:
            reg.update()
    assert_equal(model, reference)


@pytest.mark.parametrize("optimizer", [None, 0, "SGD"])
def test_manual_optimization_with_several_optimizers(optimizer):
    model, plain_second = Gan(), Gan()
    fit(plain_second, [])
    fit(model, [AdaRegCallback("first.2", **STRONG, optimizer=optimizer)])
    assert_equal(model.first, plain().model)
    assert_equal(model.second, plain_second.second)


def test_one_callback_for_each_optimizer():
    callbacks = [AdaRegCallback(n, **STRONG, prefix=f"{n}/") for n in ("first", "second")]
    model = Gan()
    trainer = fit(model, callbacks)
    assert_equal(model.first, plain(layers="all").model)
    assert {"first/penalty", "second/second.2/stable_rank"} <= trainer.callback_metrics.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": "all"}, "no optimizer holds the weights of first.0.*0 .SGD., 1 .Adam."),
        ({"optimizer": 2}, "optimizer=2: none of the optimizers 0 .SGD., 1 .Adam. fits"),
        ({"optimizer": "LBFGS"}, "optimizer='LBFGS': none of"),
        ({"optimizer": 0}, "second.2: the optimizer does not hold this layer's weight"),
    ],
)
def test_a_wrong_choice_of_optimizer_names_the_others(settings, message):
    with pytest.raises(ValueError, match=message):
        fit(Gan(), [AdaRegCallback(**settings)])


def test_two_optimizers_of_the_same_weights_are_ambiguous():
    class Twice(Gan):
        def configure_optimizers(self):
            return SGD(self.parameters(), lr=0.1), SGD(self.parameters(), lr=0.1)

    with pytest.raises(ValueError, match="more than one of the optimizers 0 .SGD., 1 .SGD. fits"):
        fit(Twice(), [AdaRegCallback()])
    fit(Twice(), [AdaRegCallback(optimizer=1)], epochs=1)


def precision_options(precision, device):
    """A gradient scaler on CPU has to be asked for explicitly."""
    if (precision, device) != ("16-mixed", "cpu"):
        return {"precision": precision}
    return {"plugins": [MixedPrecision(precision, device, torch.amp.GradScaler(device))]}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["coupled", "proximal"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-mixed"])
@pytest.mark.parametrize(
    "make", [partial(AdaRegCallback, **STRONG), partial(EvidenceCallback, "classification")]
)
def test_lower_precision_trains(make, precision, mode, device):
    callback = make(mode=mode, every_n_steps=4)
    model = module(dtype=torch.float32)
    x, y = make_data(N)
    before = cross_entropy(model.model(x), y)
    options = {"accelerator": device.replace("cuda", "gpu"), "devices": 1}
    options |= precision_options(precision, device)
    fit(model, [callback], epochs=8, loader=Batches(torch.float32), **options)
    after = cross_entropy(model.float().cpu().model(x), y)
    assert after < 0.9 * before
    assert 40 < callback.regularizer._steps <= 48  # but for the first steps, which may overflow
    assert callback.regularizer.metrics()["penalty"] > 0


def test_auto_strength_takes_the_length_of_the_data():
    callback = AdaRegCallback(strength="auto")
    fit(module(), [callback], epochs=1)
    assert callback.regularizer.strength == 1 / (2 * N)


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*make_data(N, torch.float64), strict=True)


def test_auto_strength_of_a_stream_needs_its_length():
    loader = DataLoader(Stream(), batch_size=BATCH)
    with pytest.raises(ValueError, match="give it as n_samples"):
        fit(module(), [AdaRegCallback(strength="auto")], loader=loader)
    callback = AdaRegCallback(strength="auto", n_samples=100)
    fit(module(), [callback], epochs=1, loader=loader)
    assert callback.regularizer.strength == 1 / 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": 0}, "strength=0"),
        ({"bounds": (1, 0.5)}, "bounds"),
        ({"rule": "best"}, "rule='best'"),
        ({"mode": "both"}, "mode='both': expected one of 'coupled', 'proximal'"),
        ({"every_n_steps": 0}, "every_n_steps=0"),
        ({"every_n_epochs": 1, "every_n_steps": 1}, "give one of the two"),
        ({"n_samples": 5}, "n_samples=5"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        AdaRegCallback(**settings)


def test_a_sharded_weight_is_refused():
    model = module()
    model.model[2].weight.device_mesh = "two processes"  # what tells a DTensor
    with pytest.raises(ValueError, match="model.2: the weight is sharded over processes"):
        fit(model, [AdaRegCallback()])
