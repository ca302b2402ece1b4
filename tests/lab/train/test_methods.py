"""The table of methods, and DeCov by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from adareg.lab.train.config import Config
from adareg.lab.train.ingredients import Augmentation, PaperPrior, WeightDecay
from adareg.lab.train.ingredients.decov import decov
from adareg.lab.train.methods import METHODS, find
from adareg.lab.train.networks import ARCHITECTURES, Architecture, Network

CONFIG = Config(data="digits", n=50, batch=8, blocks=1, epochs=1, weight_decay=0.3, dropout=0.2)


def test_decov_of_two_units_is_half_twice_their_covariance_squared():
    """Deviations (0, −1, 1, 0) and (−1, 0, 1, 0): a covariance of 1/4, counted twice, halved."""
    hidden = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    assert decov(hidden).item() == 1 / 16


def test_decov_is_the_off_diagonal_part_of_numpys_covariance():
    hidden = torch.randn(3, 20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for i in range(3):
        C = np.cov(hidden[i].numpy(), rowvar=False, bias=True)
        expected = 0.5 * (np.square(C).sum() - np.square(np.diag(C)).sum())
        assert decov(hidden)[i] == pytest.approx(expected, rel=1e-12)


def test_strengths_are_the_cells_or_the_methods_own():
    assert METHODS["none"].ingredients_in(CONFIG) == []
    assert WeightDecay().strength_in(CONFIG) == 0.3
    assert WeightDecay(0.1).strength_in(CONFIG) == 0.1
    assert METHODS["weight-decay"].optimizer(CONFIG) == {"weight_decay": 0.3}
    assert METHODS["dropout"].network(CONFIG) == {"dropout": 0.2}
    assert METHODS["adareg"].ingredients[0].strength_in(CONFIG) == 1e-4
    assert PaperPrior(0.5, rule="joint").strength_in(CONFIG) == 0.5


def test_what_has_no_strength_in_a_cell_is_not_used():
    without = replace(CONFIG, weight_decay=0.0)
    assert METHODS["weight-decay"].ingredients_in(without) == []
    assert METHODS["adareg+weight-decay"].ingredients_in(without) == [PaperPrior(rule="official")]
    assert METHODS["weight-decay"].tuned(0.5).ingredients_in(without) == [WeightDecay(0.5)]
    assert METHODS["none"].ingredients_in(replace(CONFIG, augment=True)) == [Augmentation()]


def test_an_unknown_method_lists_the_known():
    with pytest.raises(ValueError, match="unknown method 'magic'; there are: none, early-stopping"):
        find("magic")


@pytest.mark.parametrize(
    ("name", "weights"), [("mnist", 21_840), ("cifar10", 511_790), ("sarcos", 32_039)]
)
def test_networks_are_the_papers(name, weights):
    """CONV5x5x1x10 - CONV5x5x10x20 - FC320x50 - FC50x10 and so on: parameters counted by hand."""
    network = Network(ARCHITECTURES[name], seed=0)
    assert sum(p.numel() for p in network.parameters()) == weights


def test_paired_networks_share_what_they_can():
    plain, normed = (Network(ARCHITECTURES["mnist"], 3, batch_norm=b) for b in (False, True))
    for name, parameter in normed.named_parameters():
        if "norm" not in name:
            assert torch.equal(parameter, dict(plain.named_parameters())[name])
    other = Network(ARCHITECTURES["mnist"], 4)
    assert not torch.equal(plain.fc[0].weight, other.fc[0].weight)


def test_initial_weights_have_torchs_distribution():
    mine = Network(ARCHITECTURES["cifar10"], 0).fc[0].weight.detach()
    bound = 500**-0.5
    assert mine.abs().max() <= bound
    assert mine.std() == pytest.approx(bound / 3**0.5, rel=0.01)


def test_what_pooling_would_cut_is_refused():
    with pytest.raises(ValueError, match="cannot be halved"):
        Architecture((1, 8, 8), (4,), (), 2, kernel=4)
