"""The paper's claims, and what our records say of them.

To add a claim: write a function from ``Records`` to ``Judgement`` whose docstring states its rule,
list a ``Claim`` in its theme, and give ``tests/lab/judge/test_claims.py`` records that make it
true and false. ``base`` has the rules that all of them share.
"""

from __future__ import annotations

from adareg.lab.judge.claims.ablations import ABLATIONS
from adareg.lab.judge.claims.base import VERDICTS, Claim, Effect, Judgement
from adareg.lab.judge.claims.batches import BATCHES
from adareg.lab.judge.claims.correlations import CORRELATIONS
from adareg.lab.judge.claims.cost import COST
from adareg.lab.judge.claims.covariances import COVARIANCES
from adareg.lab.judge.claims.embedded import EMBEDDED
from adareg.lab.judge.claims.generalization import ACCURACIES, GENERALIZATION
from adareg.lab.judge.claims.optimization import OPTIMIZATION
from adareg.lab.judge.claims.sarcos import EXPLAINED_VARIANCE
from adareg.lab.judge.claims.sarcos import SPECTRA as SARCOS_SPECTRA
from adareg.lab.judge.claims.spectra import SPECTRA
from adareg.lab.judge.selection import Records
from adareg.lab.run.records import Store

__all__ = ["CLAIMS", "VERDICTS", "Claim", "Effect", "Judgement", "Records", "judge", "judge_all"]

#: In the order of the paper.
CLAIMS: dict[str, Claim] = {
    claim.key: claim
    for claim in (
        *COST,
        *GENERALIZATION,
        *BATCHES,
        EXPLAINED_VARIANCE,
        *OPTIMIZATION,
        *SPECTRA,
        *SARCOS_SPECTRA,
        *ACCURACIES,
        *CORRELATIONS,
        *ABLATIONS,
        *COVARIANCES,
        *EMBEDDED,
    )
}


def judge(records: Records) -> dict[str, Judgement]:
    """Judge every claim, by key, in the order of the paper."""
    return {key: claim.judge(records) for key, claim in CLAIMS.items()}


def judge_all(store: Store) -> dict[str, Judgement]:
    """Judge every claim from the records of a store.

    Files that cannot be read, and records of another kind, are passed over; see ``Records``.
    """
    return judge(Records.of(store))
