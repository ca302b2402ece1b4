"""What only a GPU can show: the same answers, TF32 kept out, CUDA graphs, no synchronisation."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import adareg
from adareg import AdaReg
from adareg.core.linalg import matmul
from training import assert_close, make_data, make_model

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
    # Priors are strong here, so that what they do shows.
    pytest.mark.filterwarnings("ignore::adareg.PenaltyWarning"),
]


@pytest.mark.parametrize("rule", ["alternating", "joint", "official"])
@pytest.mark.parametrize("shape", [(3, 5), (40, 17), (64, 64), (300, 500), (6, 16, 9)])
def test_the_answers_of_the_cpu(shape, rule):
    W = torch.randn(shape)
    here, there = adareg.solve(W, rule), adareg.solve(W.cuda(), rule)
    for side in ("row", "col"):
        expected, found = getattr(here, side).dense(), getattr(there, side).dense().cpu()
        assert torch.linalg.norm(found - expected) < 1e-5 * torch.linalg.norm(expected)
    torch.testing.assert_close(there.penalty(W.cuda()).cpu(), here.penalty(W), rtol=1e-5, atol=0)


def test_tf32_does_not_degrade_anything(tf32):
    A, B = torch.randn(700, 900).cuda(), torch.randn(900, 500).cuda()
    exact = A.double() @ B.double()
    assert torch.linalg.norm(A @ B - exact) > 1e-5 * torch.linalg.norm(exact)  # TF32 is really on
    assert torch.linalg.norm(matmul(A, B) - exact) < 1e-6 * torch.linalg.norm(exact)
    W = (torch.randn(600, 700) / 26).cuda()
    fast, double = adareg.solve(W, "joint"), adareg.solve(W.double(), "joint")
    torch.testing.assert_close(
        fast.penalty(W).double(), double.penalty(W.double()), rtol=1e-5, atol=0
    )
    step = fast.proximal(W, 1e-4).double()
    assert torch.linalg.norm(step - double.proximal(W.double(), 1e-4)) < 1e-5 * torch.linalg.norm(
        step
    )


@pytest.mark.parametrize("mode", ["coupled", "proximal"])
def test_a_captured_step_sees_updates(mode):
    x, y = make_data(device="cuda")
    captured, eager = make_model(device="cuda"), make_model(device="cuda")
    for model in (captured, eager):
        optimizer = torch.optim.Adam(model.parameters(), 1e-2, capturable=True)
        reg = AdaReg(model, layers="all", strength=1e-3, rule="joint")
        reg.update()
        reg.attach(optimizer, mode)

        def step(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

        run, side = step, torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        if model is captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            run = graph.replay
        for _ in range(4):
            run()
            reg.update()
            run()
    assert_close(captured, eager, rtol=1e-3, atol=1e-4)


def test_a_captured_graph_outlives_a_shorter_side_that_was_a_multiple_of_the_identity():
    model = torch.nn.Linear(1000, 300, device="cuda")
    weight = torch.randn(300, 1000, device="cuda") / 40
    reg = AdaReg(model, rule="joint")

    def update(scale):
        with torch.no_grad():
            model.weight.copy_(scale * weight)
        reg.update()
        return reg.groups[0].prior

    prior = update(1)
    assert prior.maps.product().short.shape == (1, 1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        prior = reg.groups[0].prior
        product, shrunk = prior.product(weight), prior.shrink(weight, 1e-4)
    for scale in (1, 60, 1):
        update(scale)
        graph.replay()
        fresh = adareg.solve(model.weight.detach(), "joint")
        torch.testing.assert_close(shrunk, fresh.proximal(weight, 1e-4))
        assert (product - fresh.product(weight)).norm() < 1e-3 * product.norm()


def test_capturing_before_the_first_update_is_refused():
    model = make_model(device="cuda")
    reg = AdaReg(model)
    reg.penalty()
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        reg.penalty()
    with pytest.raises(RuntimeError, match=r"call update\(\) once before capturing"):
        reg.update()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("mode", ["coupled", "proximal"])
def test_penalty_and_hooks_do_not_synchronise(mode):
    model = nn.Sequential(nn.Linear(8, 16), nn.Conv1d(4, 4, 3), nn.Linear(600, 700)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    reg = AdaReg(model, layers="all")
    reg.update()
    reg.attach(optimizer, mode)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        reg.penalty()
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_does_not_grow_over_steps():
    model = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    reg = AdaReg(model, layers="all")
    reg.attach(optimizer, update_every=2)
    sizes = []
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.ones(2, 300).cuda()).square().mean().backward()
        optimizer.step()
        sizes.append(torch.cuda.memory_allocated())
    assert max(sizes[6:]) <= max(sizes[:6])
