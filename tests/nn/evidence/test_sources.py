"""Training data for updates, in all forms."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

from adareg import EvidenceReg
from learning import assert_sound, classes, mlp


def test_updates_are_repeatable_and_read_a_loader_without_touching_the_random_state():
    x, y = classes()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=False
    )
    model = mlp()
    made = []
    for data in ((x, y), loader):
        reg = EvidenceReg(model, 40, "classification")
        handle = reg.attach(Adam(model.parameters()), data=data)
        random = torch.get_rng_state()
        reg.update()
        assert torch.equal(torch.get_rng_state(), random)
        handle.remove()
        made.append(reg.priors["0"].col.dense())
    assert torch.equal(*made)


@pytest.mark.parametrize("form", ["tuple", "dict", "batches"])
def test_forms_of_inputs(form):
    x, y = classes()
    model = mlp()
    forms = {"tuple": (x,), "dict": {"input": x}, "batches": [x[:25], x[25:]]}
    priors = []
    for inputs in (x, forms[form]):
        reg = EvidenceReg(model, 40, "classification")
        reg.update(inputs, y)
        priors.append(reg.priors["2"].row.dense())
    torch.testing.assert_close(*priors)


def test_targets_of_many_batches():
    x, y = classes(1000)
    reg = EvidenceReg(mlp(), 1000, "classification")
    reg.update(list(x.split(64)), y)
    assert reg.metrics()["updates"] == 1
    with pytest.raises(TypeError, match="targets: expected a tensor, got list"):
        reg.update(x, y.tolist())


def test_more_samples_than_there_are():
    """Such as augmented ones: what n samples determine cannot be more than they are."""
    x, _ = classes(200)
    model = mlp(outputs=1)
    reg = EvidenceReg(model, 10, "regression")
    reg.update(x, x[:, :1])
    assert_sound(reg, model)


def test_labels_are_read_off_the_gradient():
    x, y = classes()
    model = mlp()
    reg = EvidenceReg(model, 40, "classification")
    handle = reg.attach(Adam(model.parameters()))
    for start in (0, 20):
        (7 * cross_entropy(model(x[start : start + 20]), y[start : start + 20])).backward()
    inputs, labels = reg._source.batch()
    assert torch.equal(inputs[0], x)
    assert torch.equal(labels, y)
    model.eval()
    model(x)  # an evaluation is not training data
    assert len(reg._source.batch()[1]) == 40
    handle.remove()
    assert not model._forward_hooks


def test_labels_are_read_where_the_loss_is_maximized():
    x, y = classes()
    model = mlp()
    reg = EvidenceReg(model, 40, "classification")
    reg.attach(SGD(model.parameters(), 0.1, maximize=True))
    (-cross_entropy(model(x), y)).backward()
    assert torch.equal(reg._source.batch()[1], y)


def one_hot(y):
    return nn.functional.one_hot(y, 5).float()


LOSSES = {
    "squared error": lambda o, y: mse_loss(o, one_hot(y)),
    "several labels": lambda o, y: nn.functional.binary_cross_entropy_with_logits(o, one_hot(y)),
    "Poisson": lambda o, y: nn.functional.poisson_nll_loss(o, one_hot(y)),
    "cross-entropy": cross_entropy,
    "smoothed": lambda o, y: cross_entropy(o, y, label_smoothing=0.1),
    "weighted": lambda o, y: cross_entropy(o, y, weight=torch.arange(1.0, 6)),
    "ignored": lambda o, y: cross_entropy(o, y.where(y > 0, -100)),
    "log-probabilities": lambda o, y: nn.functional.nll_loss(o, y),
    "distilled": lambda o, y: cross_entropy(o, (3 * one_hot(y)).softmax(1)),
    "with a small term": lambda o, y: cross_entropy(o, y) + 1e-4 * o.logsumexp(1).square().mean(),
}
OF_CLASSES = list(LOSSES)[3:]


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_likelihood_that_does_not_fit_the_loss_is_refused(loss, data, dtype):
    x, y = classes()
    model = mlp(dtype=dtype)
    reg = EvidenceReg(model, 40, "classification")
    reg.attach(SGD(model.parameters(), 0.1), data=(x, y) if data else None)
    value = LOSSES[loss](model(x.to(dtype)).float(), y)
    if loss in OF_CLASSES:
        value.backward()
        return
    with pytest.raises(ValueError, match="likelihood='classification' does not fit the training l"):
        value.backward()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_regression_whose_loss_is_of_classes_is_refused(loss):
    x, y = classes()
    model = mlp()
    reg = EvidenceReg(model, 40, "regression")
    reg.attach(SGD(model.parameters(), 0.1), data=(x, one_hot(y)))
    value = LOSSES[loss](model(x), y)
    if loss in OF_CLASSES and loss != "log-probabilities":
        with pytest.raises(ValueError, match="the outputs is not that of a squared error"):
            value.backward()
    else:
        value.backward()
    value = LOSSES[loss](model(x), y)
    value.backward()  # looked at once


@pytest.mark.parametrize("size", [10.0, 17.0, 30.0])
def test_a_classifier_that_is_certain_of_its_data_may_be_attached(size):
    """Its gradient is rounding, and need not sum to zero."""
    x, y = classes(40)
    model = nn.Linear(8, 5)
    with torch.no_grad():
        model.weight.copy_(size * torch.eye(5, 8))
    y = model(x).argmax(1)
    reg = EvidenceReg(model, 40, "classification")
    reg.attach(torch.optim.SGD(model.parameters(), 0.1))
    cross_entropy(model(x), y).backward()


@pytest.mark.parametrize("size", [1.0, 1e3])
def test_a_squared_error_of_large_outputs_is_not_taken_for_certainty(size):
    x, _ = classes(40)
    model = nn.Linear(8, 5)
    with torch.no_grad():
        model.weight.mul_(size)
    reg = EvidenceReg(model, 40, "classification")
    reg.attach(torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match="does not fit the training loss"):
        mse_loss(model(x), size * torch.randn(40, 5)).backward()


def test_nothing_learned_after_ten_updates_is_told():
    x, y = torch.zeros(40, 8), classes()[1]  # nothing to tell classes apart by
    model = mlp()
    reg = EvidenceReg(model, 40, "classification")
    for _ in range(9):
        reg.update(x, y)
    with pytest.warns(UserWarning, match="after 10 updates the network predicts no better"):
        reg.update(x, y)
    reg.update(x, y)  # warnings are errors here


def test_a_shuffled_loader_draws_what_it_would_have_drawn():
    """Whether or not updates read it between, and whoever made its generator."""
    x, y = classes()
    drawn = []
    for updates in (0, 2):
        torch.manual_seed(7)
        loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
        reg = EvidenceReg(mlp(), 40, "classification")
        reg.attach(SGD(reg.model.parameters(), 0.1), data=loader)
        torch.manual_seed(8)
        for _ in range(updates):
            reg.update()
        drawn.append(torch.cat([labels for _, labels in loader]))
    assert torch.equal(*drawn)


def test_what_other_threads_draw_meanwhile_is_not_drawn_again():
    """An update does not rewind the global random state: here the model stands for a thread."""
    drawn = []

    class Drawing(nn.Linear):
        def forward(self, x):
            drawn.append(torch.rand(()).item())
            return super().forward(x)

    reg = EvidenceReg(Drawing(8, 5), 40, "classification")
    for _ in range(3):
        reg.update(*classes())
    assert len(set(drawn)) == len(drawn) > 0
