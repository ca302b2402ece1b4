"""Linear models in the cells of the small-data benchmark: same samples, same measures."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from adareg.lab import data
from adareg.lab.contest import cells, run, scores
from adareg.lab.contest.results import Results
from adareg.lab.contest.trial import Trial
from adareg.lab.contest.trial import run as try_once
from adareg.lab.experiments import GROUPS
from adareg.lab.experiments.smalldata import DEVELOPMENT
from adareg.lab.train import draws


def test_the_samples_are_those_of_the_networks():
    made = cells.load("smalldata-diabetes-40", 3, None)
    source = data.load("diabetes")
    rows = draws.subset(source.n_train, 40, 3)
    np.testing.assert_array_equal(made.x, source.x_train[rows].double())
    np.testing.assert_array_equal(made.y, source.y_train[rows])
    np.testing.assert_array_equal(made.y_test, source.y_test)
    assert (made.classes, made.outputs) == (0, 1)


def test_images_are_rows_of_pixels():
    made = cells.load("smalldata-digits-20", 0, None)
    assert made.x.shape == (20, 64)
    assert made.classes == 10


def test_every_cell_of_the_benchmark_has_one():
    wanted = {
        f"{experiment.name}-{config.n}"
        for experiment in GROUPS["smalldata"]
        for config in experiment.cells("paper")
    }
    assert set(cells.CELLS) == wanted
    assert {cells.parse(name)[0] for name in cells.CELLS} >= set(DEVELOPMENT)


def test_classes_that_were_never_seen_have_no_probability():
    class Seen:
        classes_ = np.array([0, 3])

        def predict_proba(self, x):
            return np.tile([0.25, 0.75], (len(x), 1))

    x = np.zeros((2, 1))
    found = scores.probabilities(Seen(), x, 5)
    np.testing.assert_array_equal(found, [[0.25, 0, 0, 0.75, 0]] * 2)
    expected = (np.log(0.75) + np.log(scores.LEAST)) / 2
    assert scores.log_likelihood(Seen(), x, np.array([3, 4])) == pytest.approx(expected)


def test_measures_of_classes():
    p = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    found = scores.in_cell(np.array([0, 1]), p, None)
    assert found["quality"] == 50
    assert found["test_nll"] == pytest.approx(-(np.log(0.7) + np.log(0.3)) / 2)
    assert found["test_calibration"] == pytest.approx((0.3 + 0.4) / 2)


def test_measures_of_tasks():
    """As the benchmark has them: all tasks together, one noise."""
    rng = np.random.default_rng(0)
    y, mean = rng.normal(size=(30, 2)).astype("float32"), rng.normal(size=(30, 2))
    found = scores.in_cell(y, mean, np.float64(1.5))
    errors = y.astype("float64") - mean
    explained = 1 - (errors**2).mean(0).sum() / y.astype("float64").var(0).sum()
    assert found["quality"] == pytest.approx(100 * explained)
    density = torch.distributions.Normal(torch.from_numpy(mean), 1.5).log_prob(torch.from_numpy(y))
    assert found["test_nll"] == pytest.approx(-density.mean().item())


def test_a_trial_chooses_the_strength_and_its_noise():
    made = try_once(Trial("smalldata", "smalldata-diabetes-80", 0, "linear"), None, {})
    assert made["scores"].keys() == {"quality", "test_nll", "test_calibration"}
    problem = cells.load("smalldata-diabetes-80", 0, None)
    best = max(
        100 * Ridge(alpha=alpha).fit(problem.x, problem.y).score(problem.x_test, problem.y_test)
        for alpha in 10.0 ** np.arange(-3, 4.5, 0.5)
    )
    assert best - 20 < made["scores"]["quality"] <= best + 1e-6


def test_few_samples_of_many_classes():
    made = try_once(Trial("smalldata", "smalldata-digits-20", 0, "linear"), None, {})
    assert 40 < made["scores"]["quality"] < 90
    assert made["scores"]["test_nll"] < np.log(10)


def test_cells_are_planned_without_reading_their_data(tmp_path):
    planned = run.plan("paper", Results(tmp_path), None, ["smalldata-wine"])
    assert len(planned.trials) == 3 * 8
    with pytest.raises(data.DataNotFoundError, match="smalldata|mnist"):
        run.plan("paper", Results(tmp_path), tmp_path, ["smalldata-mnist"])
