"""One contract for every adapter: a lossless reshape in which row i makes output i alone."""

import pytest
import torch
from torch import nn

import adareg
from adareg.nn.layout import kind_of, layouts_of

IMAGE = {1: (9,), 2: (7, 6), 3: (5, 4, 4)}

CONVOLUTIONS = [
    pytest.param(
        cls(8, 12, 3, groups=groups, bias=False), rank, id=f"{cls.__name__}-groups{groups}"
    )
    for rank, classes in {
        1: (nn.Conv1d, nn.ConvTranspose1d),
        2: (nn.Conv2d, nn.ConvTranspose2d),
        3: (nn.Conv3d, nn.ConvTranspose3d),
    }.items()
    for cls in classes
    for groups in (1, 2, 4)
]

MODULES = [
    (nn.Linear(5, 3), [(3, 5)]),
    (nn.Conv1d(4, 6, 3), [(6, 12)]),
    (nn.Conv2d(4, 6, (3, 2)), [(6, 24)]),
    (nn.Conv2d(4, 6, 3, groups=2), [(2, 3, 18)]),
    (nn.Conv2d(4, 4, 3, groups=4), [(4, 1, 9)]),
    (nn.Conv3d(2, 3, 2), [(3, 16)]),
    (nn.ConvTranspose1d(4, 6, 3), [(6, 12)]),
    (nn.ConvTranspose2d(4, 6, (3, 2)), [(6, 24)]),
    (nn.ConvTranspose2d(4, 6, 3, groups=2), [(2, 3, 18)]),
    (nn.ConvTranspose3d(2, 3, 2), [(3, 16)]),
    (nn.Embedding(11, 4), [(4, 11)]),
    (nn.EmbeddingBag(11, 4), [(4, 11)]),
    (nn.MultiheadAttention(6, 2), [(3, 6, 6)]),
    (nn.MultiheadAttention(6, 2, kdim=4, vdim=5), [(6, 6), (6, 4), (6, 5)]),
]


@pytest.mark.parametrize(("module", "shapes"), MODULES, ids=lambda x: str(x)[:40])
def test_shapes_and_round_trip(module, shapes):
    layouts = layouts_of(module)
    assert len(layouts) == len(shapes)
    for layout, shape in zip(layouts, shapes, strict=True):
        weight = module.get_parameter(layout.parameter)
        matrix = layout.to_matrix(weight)
        assert matrix.shape == shape
        assert torch.equal(layout.from_matrix(matrix), weight)
        assert torch.equal(layout.to_matrix(layout.from_matrix(matrix)), matrix)


def _changed_outputs(module, inputs, row, group=None):
    """The output channels that change when one row of the matrix is zeroed."""
    (layout,) = layouts_of(module)
    before = module(inputs)
    weight = module.get_parameter(layout.parameter)
    original = weight.detach().clone()
    matrix = layout.to_matrix(original).clone()
    (matrix if group is None else matrix[group])[row] = 0
    with torch.no_grad():
        weight.copy_(layout.from_matrix(matrix))
        after = module(inputs)
        weight.copy_(original)
    channels = (
        (before - after).abs().flatten(2).sum((0, 2))
        if before.ndim > 2
        else ((before - after).abs().sum(0))
    )
    return channels.nonzero().flatten().tolist(), after


@pytest.mark.parametrize(("module", "rank"), CONVOLUTIONS)
def test_a_row_of_a_convolution_makes_one_output_channel(module, rank):
    x = torch.randn(2, 8, *IMAGE[rank])
    per_group = 12 // module.groups
    for group in range(module.groups):
        for row in (0, per_group - 1):
            index = None if module.groups == 1 else group
            changed, after = _changed_outputs(module, x, row, index)
            channel = group * per_group + row
            assert changed == [channel]
            assert after[:, channel].abs().max() == 0


def test_a_row_of_linear_and_embedding_makes_one_output():
    assert _changed_outputs(nn.Linear(5, 3, bias=False), torch.randn(4, 5), 1)[0] == [1]
    assert _changed_outputs(nn.Embedding(11, 4), torch.arange(11), 2)[0] == [2]


def test_convolution_is_its_matrix_times_unfolded_patches():
    conv = nn.Conv2d(3, 5, (3, 2), bias=False)
    (layout,) = layouts_of(conv)
    x = torch.randn(2, 3, 6, 7)
    patches = nn.functional.unfold(x, (3, 2))
    torch.testing.assert_close(layout.to_matrix(conv.weight) @ patches, conv(x).flatten(2))


def test_attention_projections_in_order():
    attention = nn.MultiheadAttention(6, 2, bias=False)
    (layout,) = layouts_of(attention)
    q, k, v = attention.in_proj_weight.chunk(3)
    assert torch.equal(layout.to_matrix(attention.in_proj_weight), torch.stack([q, k, v]))


def test_subclasses_are_covered_and_strangers_are_not():
    class Mine(nn.Linear):
        pass

    assert kind_of(Mine(2, 3)) == "fc"
    assert layouts_of(nn.LSTM(2, 3)) is None
    assert kind_of(nn.ReLU()) is None


def test_one_decorated_function_adds_a_layer_kind():
    class Swapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(4, 3))

    @adareg.register_layout(Swapped, kind="swapped")
    def swapped(module):
        return [adareg.Layout("kernel", lambda w: w.mT, lambda m: m.mT)]

    reg = adareg.AdaReg(nn.Sequential(nn.Linear(2, 2), Swapped()), layers="swapped")
    assert {name: tuple(p.shape) for name, p in reg.priors.items()} == {"1.kernel": (3, 4)}
