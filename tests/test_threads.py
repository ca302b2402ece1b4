"""Small work has one thread; the number from before, and one that the user chose, stay."""

import os
import threading

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from adareg import _threads
from adareg._threads import OneThread
from adareg.lab.data import load
from adareg.lab.run import cell
from adareg.lab.train.config import Config
from adareg.lab.train.stacked import Replica
from adareg.sklearn import AdaRegRegressor, EvidenceRegressor, _base, _evidence_base

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def two_threads(monkeypatch):
    """A machine with two processors, whose user has chosen nothing."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def blas():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.mark.usefixtures("two_threads")
def test_one_thread_within_and_the_number_from_before_afterwards():
    one_thread, before = OneThread(), blas()
    with one_thread():
        assert torch.get_num_threads() == 1
        assert set(blas()) <= {1}
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1, "the inner one has ended the outer one"
    assert torch.get_num_threads() == 2
    assert blas() == before
    with one_thread(small=False):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_restores_it_too():
    one_thread, before = OneThread(), blas()
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert torch.get_num_threads() == 2
    assert blas() == before
    with one_thread():
        assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_the_environment_wins(monkeypatch, name):
    monkeypatch.setenv(name, "2")
    with OneThread()():
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_number_that_torch_does_not_start_with_wins():
    torch.set_num_threads(3)
    with OneThread()():
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("two_threads")
def test_in_several_threads_at_once_each_has_its_number_again():
    one_thread, before = OneThread(), blas()
    inside, go_on = threading.Event(), threading.Event()
    seen = []

    def other():
        with one_thread():
            seen.append(torch.get_num_threads())
            inside.set()
            go_on.wait(10)
            seen.append(set(blas()) <= {1})
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    with one_thread():
        thread.start()
        assert inside.wait(10)
    assert torch.get_num_threads() == 2, "the first to enter has left"
    go_on.set()
    thread.join()
    assert seen == [1, True, 2]
    assert torch.get_num_threads() == 2
    assert blas() == before


class Watch(OneThread):
    """Remembers what was asked of it."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __call__(self, small=True):
        self.asked.append(small)
        return super().__call__(small)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("room", [_base, _evidence_base])
def test_estimators_use_it_for_small_tables(monkeypatch, room):
    watch = Watch()
    monkeypatch.setattr(room, "one_thread", watch)
    kind = AdaRegRegressor if room is _base else EvidenceRegressor
    x = np.random.default_rng(0).normal(size=(20, 3))
    kind(hidden_layer_sizes=(4,), max_iter=2).fit(x, x[:, 0])
    assert watch.asked == [True]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_large_networks_keep_the_threads_there_are(monkeypatch):
    monkeypatch.setattr(_base, "SMALL_STEP", 20 * 3 * 4)
    watch = Watch()
    monkeypatch.setattr(_base, "one_thread", watch)
    x = np.random.default_rng(0).normal(size=(20, 3))
    AdaRegRegressor(hidden_layer_sizes=(4,), max_iter=2, solver="lbfgs").fit(x, x[:, 0])
    assert watch.asked == [False]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("limit", [_threads.SMALL_STEP, 1])
def test_cells_of_the_lab_use_it_for_small_stacks(monkeypatch, limit):
    watch = Watch()
    monkeypatch.setattr(cell, "one_thread", watch)
    monkeypatch.setattr(cell, "SMALL_STEP", limit)
    config = Config(data="digits", n=20, batch=20, blocks=1, epochs=1)
    cell.run(config, [Replica("none", 0)], load("digits"), torch.device("cpu"))
    assert watch.asked == [limit > 1]
    assert torch.get_num_threads() == 2
