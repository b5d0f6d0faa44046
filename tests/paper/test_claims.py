"""Every rule can say yes and no: given numbers for which a claim holds, and a counterexample."""

import math
import re
from dataclasses import dataclass, fields

import numpy as np
import pytest
from paper.claim_examples import EXAMPLES

from normgrowth.errors import InputError
from normgrowth.paper.claim import Claim, judge, number, rule
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.evidence import Evidence
from normgrowth.records import Block, Records
from normgrowth.stored_result import StoredResult

HOLDS, IN_PART, FAILS = "holds", "in part", "does not hold"
UNDECIDED, WEIGHTS = "undecided", "needs weights that are not here"


def test_every_claim_has_examples_and_a_rule():
    assert EXAMPLES.keys() == CLAIMS.keys()
    assert all(rule(claim).endswith(".") for claim in CLAIMS.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_can_say_yes_and_no(name):
    good, partly, bad = EXAMPLES[name]
    claim = CLAIMS[name]
    assert claim(**good).judge().verdict == HOLDS
    if partly is not None:
        assert claim(**(good | partly)).judge().verdict == IN_PART
    ruling = claim(**(good | bad)).judge()
    assert ruling.verdict == FAILS
    assert re.search(r"\.$", ruling.reason)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=lambda claim: claim.id)
def test_labels_are_different(claim):
    labels = [one.metadata["label"] for one in fields(claim)]
    assert len(set(labels)) == len(labels)


PUBLISHED = [claim for claim in CLAIMS.values() if not claim.needs]


def test_verdicts_on_the_published_numbers():
    """Derived by hand from the same figures, see docs/t5.md."""
    found = {claim.id: judge(claim, Evidence()) for claim in PUBLISHED}
    assert found["norm-sqrt"].measured["r2 of a√t + b"] == pytest.approx(0.9986, abs=5e-5)
    assert found["alignment"].measured["share of growth by steps"] == pytest.approx(0.56, abs=0.005)
    assert found["step-size"].measured["last, expected of its fewer steps"] == pytest.approx(286, abs=1)
    assert found["dynamics"].measured["T5: misaligned dynamics end at"] == pytest.approx(1747, rel=1e-3)
    assert {name: one.verdict for name, one in found.items()} == {
        "norm-sqrt": IN_PART,
        "norm-layers": IN_PART,
        "direction-consecutive": HOLDS,
        "direction-converges": FAILS,
        "alignment": IN_PART,
        "step-size": IN_PART,
        "dynamics": IN_PART,
    }


def test_a_claim_without_its_stage_is_undecided():
    claim = CLAIMS["lm-growth"]
    assert judge(claim, Evidence()).verdict == UNDECIDED
    failed = judge(claim, Evidence(failed={"language_models": "no space"}))
    assert "no space" in failed.reason


def test_what_cannot_be_measured_leaves_a_claim_undecided():
    @dataclass(frozen=True)
    class Unknown(Claim):
        """A rule."""

        id, where, statement, published, source = "unknown", "", "", "", ""
        value: float = number("the value")

        @classmethod
        def measure(cls, _):
            return cls(math.nan)

    class Missing(Unknown):
        @classmethod
        def measure(cls, _):
            raise InputError("nothing there")

    found = judge(Missing, Evidence())
    assert found.verdict == UNDECIDED
    assert "nothing there" in found.reason
    found = judge(Unknown, Evidence())
    assert found.verdict == UNDECIDED
    assert found.measured == {"the value": None}


def test_weights_that_are_not_here():
    good = EXAMPLES["saturation-pretrained"][0]
    ruling = CLAIMS["saturation-pretrained"](**(good | {"here": 0.0})).judge()
    assert ruling.verdict == WEIGHTS


def test_layers_of_figure_2_that_are_no_closer():
    """T5's layers 3 to 6 and XLNet's first: listed whatever the verdict."""
    levels = {"saturation": np.array([[0.5]]), "saturation_random": np.array([[0.02]])}
    block = Block("model", ["model"], [None], [None], [0], levels, constants={"scale": 1000.0})
    records = Records.from_blocks("minilm", [block])
    found = judge(CLAIMS["saturation-pretrained"], Evidence({"pretrained": StoredResult(records)}))
    assert found.verdict == WEIGHTS
    listed = re.findall(r"(t5|xlnet)[\w-]*, layer (\d+)", found.reason)
    assert listed == [("t5", "3"), ("t5", "4"), ("t5", "5"), ("t5", "6"), ("xlnet", "1")]
    assert all(value < 0 for name, value in found.measured.items() if value and "layer" in name)
