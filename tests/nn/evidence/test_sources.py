"""Training data for updates, in all forms."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim import Adam

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
