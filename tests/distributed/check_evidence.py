"""The evidence rule on several ranks."""

import json

import pytest
import torch
import torch.distributed as dist
from harness import alone_group, check, ddp, fsdp, gathered
from jobs import batch, make_model, rank_and_size
from torch.nn.functional import cross_entropy

from adareg import EvidenceReg, NonFiniteError


def train_by_evidence(model, share, group=None, **attached):
    """Classes from one batch, of which each rank has a share."""
    x, y = batch(0)
    labels = y.argmax(1)
    reg = EvidenceReg(model, len(x), "classification", process_group=group)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    reg.attach(optimizer, **attached)
    rank, size = share
    for _ in range(12):
        optimizer.zero_grad()
        cross_entropy(model(x.chunk(size)[rank]), labels.chunk(size)[rank]).backward()
        optimizer.step()
    return model, reg


@check(2, 4, cuda=True)
def evidence_is_that_of_one_process(expected):
    x, y = batch(0)
    data = {"data": (x, y.argmax(1)), "update_every": 3}
    model, reg = train_by_evidence(make_model(), (0, 1), alone_group(), **data)
    theirs, ours = train_by_evidence(ddp(), rank_and_size(), **data)
    assert reg.metrics()["waiting"] == 0
    assert ours.metrics() == pytest.approx(reg.metrics(), rel=1e-8)
    for one, other in zip(theirs.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    for name, prior in reg.priors.items():
        torch.testing.assert_close(
            ours.priors[name].col.dense(), prior.col.dense(), rtol=1e-8, atol=0
        )
    low = gathered(ours.correlations("5").low.tolist())
    assert all(one == low[0] for one in low)


@check(2, 4, cuda=True)
def evidence_of_what_the_first_rank_has_seen(expected):
    """Ranks see different batches and end with the same bits."""
    model, reg = train_by_evidence(ddp(), rank_and_size(), update_every=2)
    assert reg.metrics()["updates"] == 6
    factors = [f for p in reg.priors.values() for f in (*p.row.factors, *p.col.factors)]
    tensors = [*model.parameters(), *(f for f in factors if f is not None)]
    everyone = gathered([t.detach().cpu().numpy().tobytes() for t in tensors])
    assert all(one == everyone[0] for one in everyone)
    assert len({json.dumps(m) for m in gathered(reg.metrics())}) == 1


@check(2)
def evidence_that_fails_on_the_first_rank_fails_on_all(expected):
    x, y = batch(0)
    model = ddp()
    reg = EvidenceReg(model, len(x), "classification")
    before = reg.state_dict()
    with pytest.raises(RuntimeError, match=r"failed on rank 0: .*the inputs of these targets"):
        reg.update(None if dist.get_rank() == 0 else x, y.argmax(1))
    with torch.no_grad():
        next(model.parameters())[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="0 on rank 0; 0 on rank 1: the weight has NaN"):
        reg.update(x, y.argmax(1))
    assert str(reg.state_dict()) == str(before)
    with pytest.raises(NotImplementedError, match="the weight is sharded, and EvidenceReg"):
        EvidenceReg(fsdp(), 9, "classification", layers="last").update(x, y.argmax(1))
