"""Tables whose columns, targets, classes or rows change places, the first weights with them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adareg.core.evidence.classes import Classes
from adareg.core.evidence.learn import Learned, State, Table, learn
from adareg.core.evidence.perceptron import Perceptron
from adareg.core.evidence.tabular import TableLikelihood, TargetNoise

DOUBLE = torch.float64
STEPS = 8  # so few that rounding does not decide when to stop


def orders(n: int) -> st.SearchStrategy[Tensor]:
    return st.permutations(range(n)).map(torch.tensor)


def table(seed: int, kind: str) -> Table:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(16, 4, generator=generator, dtype=DOUBLE)
    clean = torch.sin(X @ torch.randn(4, 3, generator=generator, dtype=DOUBLE))
    Y = clean + 0.3 * torch.randn(16, 3, generator=generator, dtype=DOUBLE)
    weight = 1.0 + torch.arange(16) % 3
    return Table(X, Y if kind == "targets" else Y.argmax(1), weight.to(DOUBLE))


def trained(data: Table, w: Tensor, kind: str) -> Learned:
    network = Perceptron(4, 3, (5,))
    likelihood: TableLikelihood = TargetNoise() if kind == "targets" else Classes()
    state = State(w, network.start(0)[1], likelihood.first_noise(data.Y))
    return learn(network, likelihood, data, state, max_steps=STEPS)


def moved(w: Tensor, columns: Tensor, outputs: Tensor, units: Tensor) -> Tensor:
    """Return the weights of the network whose inputs, outputs and units have changed places."""
    first, out, path = Perceptron(4, 3, (5,)).split(w)
    with_bias = torch.cat([columns, torch.tensor([4])]), torch.cat([units, torch.tensor([5])])
    parts = first[units][:, with_bias[0]], out[outputs][:, with_bias[1]], path[outputs][:, columns]
    return torch.cat([part.flatten() for part in parts])


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99), orders(4), orders(3), orders(5), orders(16))
@pytest.mark.parametrize("kind", ["targets", "classes"])
def test_places_do_not_matter(
    kind: str, seed: int, columns: Tensor, outputs: Tensor, units: Tensor, rows: Tensor
) -> None:
    data, w = table(seed, kind), Perceptron(4, 3, (5,)).start(seed)[0]
    plain = trained(data, w, kind)
    Y = data.Y[:, outputs] if kind == "targets" else outputs.argsort()[data.Y]
    other = Table(data.X[rows][:, columns], Y[rows], data.weight[rows])
    found = trained(other, moved(w, columns, outputs, units), kind)
    expected = plain.network(plain.state.w, data.X)[rows][:, outputs]
    torch.testing.assert_close(
        found.network(found.state.w, other.X), expected, rtol=1e-5, atol=1e-5
    )
    assert found.log_evidence == pytest.approx(plain.log_evidence, rel=1e-5, abs=1e-5)
    assert found.score == pytest.approx(plain.score, rel=1e-5, abs=1e-5)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99))
@pytest.mark.parametrize("kind", ["targets", "classes"])
def test_a_weight_of_k_is_a_sample_k_times(kind: str, seed: int) -> None:
    data, w = table(seed, kind), Perceptron(4, 3, (5,)).start(seed)[0]
    times = data.weight.long()
    repeated = Table(*(x.repeat_interleave(times, 0) for x in (data.X, data.Y)), torch.ones(1))
    repeated = Table(repeated.X, repeated.Y, torch.ones(len(repeated.X), dtype=DOUBLE))
    weighted, written_out = trained(data, w, kind), trained(repeated, w, kind)
    outputs = [one.network(one.state.w, data.X) for one in (weighted, written_out)]
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)
    assert weighted.log_evidence == pytest.approx(written_out.log_evidence, rel=1e-5, abs=1e-5)
    assert weighted.score == pytest.approx(written_out.score, rel=1e-5, abs=1e-5)
