"""Every rule can say yes and no: fed numbers that bear a claim out, and a counter-example."""

import math
import re
from dataclasses import replace

import pytest
from paper.claim_examples import EXAMPLES

from normgrowth.errors import InputError
from normgrowth.paper.claim import FAILS, HOLDS, IN_PART, UNDECIDED, WEIGHTS, judged
from normgrowth.paper.claims import CLAIMS


def test_every_claim_has_examples():
    assert EXAMPLES.keys() == CLAIMS.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_can_say_yes_and_no(name):
    good, partly, bad = EXAMPLES[name]
    judge = CLAIMS[name].judge
    assert judge(good).verdict == HOLDS
    if partly is not None:
        assert judge(good | partly).verdict == IN_PART
    ruling = judge(good | bad)
    assert ruling.verdict == FAILS
    assert re.search(r"\.$", ruling.reason)


@pytest.mark.parametrize("name", EXAMPLES)
def test_changes_of_examples_are_numbers_of_the_rule(name):
    good, partly, bad = EXAMPLES[name]
    assert {*(partly or {}), *bad} <= good.keys()


PUBLISHED = [claim for claim in CLAIMS.values() if not claim.stages]


@pytest.mark.parametrize("claim", PUBLISHED, ids=lambda claim: claim.id)
def test_numbers_measured_are_those_that_the_rule_takes(claim):
    found = judged(claim, {})
    assert found.numbers.keys() == EXAMPLES[claim.id][0].keys()
    assert found.ruling == claim.judge(found.numbers)


def test_verdicts_on_the_published_numbers():
    """Derived by hand from the same figures, see docs/t5.md."""
    found = {claim.id: judged(claim, {}) for claim in PUBLISHED}
    assert found["norm-sqrt"].numbers["r2 of a√t + b"] == pytest.approx(0.9986, abs=5e-5)
    assert found["alignment"].numbers["share of growth by steps"] == pytest.approx(0.56, abs=0.005)
    assert found["step-size"].numbers["last, expected of its fewer steps"] == pytest.approx(286, abs=1)
    assert found["dynamics"].numbers["T5: misaligned dynamics end at"] == pytest.approx(1747, rel=1e-3)
    verdicts = {name: one.ruling.verdict for name, one in found.items()}
    assert verdicts == {
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
    assert judged(claim, {}).ruling.verdict == UNDECIDED
    assert "no space" in judged(claim, {}, {"language_models": "no space"}).ruling.reason


def test_records_that_do_not_tell_leave_a_claim_undecided():
    def fails(evidence):
        raise InputError("nothing there")

    claim = replace(CLAIMS["norm-sqrt"], measure=fails)
    assert judged(claim, {}).ruling == judged(claim, {}).ruling
    assert "nothing there" in judged(claim, {}).ruling.reason
    unknown = replace(claim, measure=lambda _: {"r2": math.nan})
    assert judged(unknown, {}).ruling.verdict == UNDECIDED


def test_weights_that_are_not_here():
    good = EXAMPLES["saturation-pretrained"][0]
    ruling = CLAIMS["saturation-pretrained"].judge(good | {"models of the paper that are here": 0.0})
    assert ruling.verdict == WEIGHTS


def test_layers_of_figure_2_that_are_no_closer():
    """T5's layers 3 to 6 and XLNet's first, see PAPER.md: listed whatever the verdict."""
    from normgrowth.paper.stages.theory import numbers

    records = numbers("minilm", {"saturation_c1000": 0.5, "saturation_c1000_random": 0.02})
    found = judged(CLAIMS["saturation-pretrained"], {"pretrained": records})
    assert found.ruling.verdict == WEIGHTS
    listed = re.findall(r"(t5|xlnet)[\w-]*, layer (\d+)", found.ruling.reason)
    assert listed == [("t5", "3"), ("t5", "4"), ("t5", "5"), ("t5", "6"), ("xlnet", "1")]
    assert all(value < 0 for name, value in found.numbers.items() if "layer" in name)
