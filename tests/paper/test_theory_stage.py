"""The stage `theory` run for real: what claims and errata make of it."""

import pytest
from paper.claim_examples import EXAMPLES

from normgrowth.paper.claim import HOLDS, IN_PART, judged
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.errata import ERRATA
from normgrowth.paper.erratum import checked
from normgrowth.records import Records


@pytest.fixture(scope="module")
def theory_stage():
    import torch

    from normgrowth.paper.stages.theory import theory

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield theory()
    torch.set_num_threads(before)


def test_table1_claims_on_the_stage_itself(theory_stage):
    assert isinstance(theory_stage, Records)
    ids = ("saturation-limit", "attention-power", "homogeneity-table", "encoder-degree")
    found = {name: judged(CLAIMS[name], {"theory": theory_stage}) for name in ids}
    assert {name: one.ruling.verdict for name, one in found.items()} == {
        "saturation-limit": IN_PART,
        "attention-power": HOLDS,
        "homogeneity-table": IN_PART,
        "encoder-degree": HOLDS,
    }
    for name, one in found.items():
        assert one.numbers.keys() == EXAMPLES[name][0].keys()


def test_errata_on_the_stage_itself(theory_stage):
    found = {
        name: checked(ERRATA[name], {"theory": theory_stage})
        for name in ("prop-4", "prop-2", "pre-norm", "vanishing")
    }
    assert all(one.fails for one in found.values())
    assert list(found["pre-norm"].numbers.values()) == pytest.approx([1, 3], abs=1e-3)
    assert found["vanishing"].numbers["1 − cosine without later attention, c = 1"] > 0.1
    assert found["vanishing"].numbers["the same at c = 1000"] < 1e-9
