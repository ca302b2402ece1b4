"""Numbers that are a function of seed, purpose, step and position."""

import pytest
import torch
from scipy import stats

from adareg.lab.train import draws
from adareg.lab.train.draws import Purpose


def draw(seed, purpose=Purpose.DROPOUT, step=0, shape=(4096,)):
    return draws.uniform(torch.tensor([seed]), purpose, torch.tensor(step), shape)[0]


def test_each_seed_has_the_same_numbers_in_any_company():
    together = draws.uniform(torch.tensor([5, 9, 2]), Purpose.FLIP, torch.tensor(7), (3, 4))
    for i, seed in enumerate((5, 9, 2)):
        assert torch.equal(together[i], draw(seed, Purpose.FLIP, 7, (3, 4)))


def test_a_generator_is_seeded_by_the_same_hash():
    first, second = (draw(3, Purpose.ORDER, 11, (2,)).double() * 2**24).long().tolist()
    expected = torch.Generator().manual_seed(first * 2**24 + second)
    mine = draws.generator(3, Purpose.ORDER, 11)
    assert torch.equal(torch.rand(5, generator=mine), torch.rand(5, generator=expected))


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_numbers_are_uniform(seed):
    assert stats.kstest(draw(seed, shape=(100_000,)).numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"seed": 0, "step": 1},
        {"seed": 0, "purpose": Purpose.DROPOUT + 1},
    ],
)
def test_neighbouring_sequences_are_independent(other):
    a, b = draw(0), draw(**other)
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.06  # four standard deviations
    table = torch.histogramdd(torch.stack([a, b], 1), [4, 4], range=[0.0, 1.0, 0.0, 1.0]).hist
    assert stats.chi2_contingency(table.numpy()).pvalue > 1e-4


def test_a_larger_subset_keeps_the_samples_of_a_smaller_one():
    assert torch.equal(draws.subset(100, 40, 3)[:10], draws.subset(100, 10, 3))
    assert sorted(draws.order(9, 0, 1).tolist()) == list(range(9))
    assert not torch.equal(draws.order(50, 0, 1), draws.order(50, 0, 2))
