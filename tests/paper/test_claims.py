"""Every rule can say yes and no: given numbers for which a claim holds, and a counterexample."""

import math
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from paper.claim_examples import EXAMPLES

from normgrowth.errors import InputError
from normgrowth.network.saturation.result import Saturation
from normgrowth.paper.claim import Claim, holds, judge, number, rule
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.claims.t5_growth import layer_slopes
from normgrowth.paper.claims.trained_models import GROWN, local_exponents, ratio_move
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.published import lm_runs
from normgrowth.paper.published.figure1 import t5_trace
from normgrowth.paper.published.tables import published
from normgrowth.paper.t5_series import PublishedT5
from normgrowth.records import Block, Matrix, Records

HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"
NOT_SHOWN, NOT_MEASURED = "not shown", "not measured here"


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


def test_an_exponent_and_its_interval_have_the_same_sign():
    claim = CLAIMS["direction-converges"]
    falling = claim(q=0.83, q_low=0.82, q_high=0.85, total_degrees=700)
    assert "t^−0.83 [−0.85, −0.82]" in falling.judge().reason
    rising = claim(q=-0.1, q_low=-0.2, q_high=-0.05, total_degrees=700)
    assert "t^0.10 [0.05, 0.20]" in rising.judge().reason


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=lambda claim: claim.id)
def test_labels_are_different(claim):
    labels = [one.metadata["label"] for one in fields(claim)]
    assert len(set(labels)) == len(labels)


PUBLISHED = [claim for claim in CLAIMS.values() if not claim.needs]


def test_verdicts_on_the_published_numbers():
    """Derived by hand from the same figures, see docs/t5.md."""
    found = {claim.id: judge(claim, Evidence()) for claim in PUBLISHED}
    measured = {name: one.measured for name, one in found.items()}
    for scope, r2, share in (("total", 0.9986, 0.56), ("encoder", 0.9991, 0.66), ("decoder", 0.9981, 0.52)):
        assert measured["norm-sqrt"][f"r² of a√t + b: {scope}"] == pytest.approx(r2, abs=5e-5)
        assert measured["misaligned"][f"share of growth by steps: {scope}"] == pytest.approx(share, abs=0.005)
    for start, change in (("30%", 26.8), ("50%", 21.2), ("60%", 17.9)):
        label = f"largest minus smallest: total from {start}"
        assert measured["step-size"][label] == pytest.approx(change, abs=0.05)
    assert measured["norm-layers"]["rank correlation of slope and layer"] == pytest.approx(0.71, abs=0.005)
    assert found["step-size"].measured["last, expected of its fewer steps"] == pytest.approx(286, abs=1)
    assert found["dynamics"].measured["T5: misaligned dynamics end at"] == pytest.approx(1747, rel=1e-3)
    assert {name: one.verdict for name, one in found.items()} == {
        "norm-sqrt": HOLDS,
        "norm-intercept": IN_PART,
        "norm-layers": HOLDS,
        "direction-consecutive": HOLDS,
        "direction-converges": NOT_SHOWN,
        "alignment": HOLDS,
        "misaligned": IN_PART,
        "step-size": IN_PART,
        "step-size-encoder": HOLDS,
        "step-size-decoder": IN_PART,
        "saturation-final": IN_PART,
        "saturation-depth": HOLDS,
        "dynamics": IN_PART,
    }


def test_a_verdict_says_its_scope_its_data_and_what_would_change_it():
    for claim in CLAIMS.values():
        found = judge(claim, Evidence())
        assert found.scope
        assert found.would_change.endswith(".")
        assert found.data.startswith(claim.source)
        assert all(f"{stage}: not run" in found.data for stage in claim.needs)


def ranks(values):
    return [sum(other < one for other in values) for one in values]


def rank_correlation(a, b):
    """1 − 6 Σ d² / (n³ − n), of values without ties."""
    n, pairs = len(a), zip(ranks(a), ranks(b), strict=True)
    return 1 - 6 * sum((x - y) ** 2 for x, y in pairs) / (n**3 - n)


def test_levels_of_figure_2_by_layer():
    rows = published("saturation_pretrained")
    levels: dict[str, list[float]] = {}
    for model, _, cosine in zip(*(rows[name].tolist() for name in rows), strict=True):
        levels.setdefault(model, []).append(cosine)
    final, depth = (
        judge(CLAIMS[name], Evidence()).measured for name in ("saturation-final", "saturation-depth")
    )
    for model, own in levels.items():
        assert final[f"last published layer: {model}"] == own[-1]
        assert final[f"mean over layers: {model}"] == pytest.approx(sum(own) / len(own))
    assert final["layers missing at the end: xlnet-base-cased"] == 1
    for model in ("t5-base", "xlnet-base-cased"):
        wanted = rank_correlation(range(len(levels[model])), levels[model])
        assert depth[f"rank correlation of level and layer: {model}"] == pytest.approx(wanted)


def test_growth_and_levels_of_t5():
    """Slopes of a√t + b by the normal equations."""
    layers, slopes = published("t5_norm_by_layer"), []
    for number_ in range(1, 13):
        own = layers.layer(number_)
        root = np.sqrt(own["step"].astype(float))
        slopes.append(((root - root.mean()) * own["norm"]).sum() / ((root - root.mean()) ** 2).sum())
    rows = published("saturation_pretrained")
    levels = rows["cosine"][rows["model"] == "t5-base"].tolist()
    found = layer_slopes(PublishedT5())
    assert [slope for slope, _ in found.values()] == pytest.approx(slopes, rel=1e-6)
    assert rank_correlation(slopes, levels) == pytest.approx(0.3916, abs=5e-5)


def test_models_that_do_not_decide():
    for name, change in (
        ("conversion", {"converted": 0.0, "accurate": 0.0, "saturated": 0.0}),
        ("saturation-lm", {"models": 0.0, "saturated": 0.0}),
        ("schedule-decides", {"pairs": 1.0, "least": 0.05, "largest": 0.05}),
        ("conversion", {"models": 0.0}),
        ("heads-local", {"local": 0.0, "layers": 4.0}),
        ("heads-bimodal", {"at_one": 1.0, "at_all": 0.0, "published_largest": 41.9}),
        ("saturation-growth", {"p_value": 0.2, "sign_p": 0.06}),
    ):
        assert CLAIMS[name](**(EXAMPLES[name][0] | change)).judge().verdict == NOT_SHOWN


def test_small_models_are_too_small_to_judge():
    good = EXAMPLES["saturation-lm"][0]
    for change in ({"layers": 4.0}, {"epochs": 1.0}, {"layers": None, "epochs": None}):
        ruling = CLAIMS["saturation-lm"](**(good | {"saturated": 0.0} | change)).judge()
        assert ruling.verdict == NOT_SHOWN
        assert "too small to judge" in ruling.reason


def test_scalars_of_models_that_hardly_grew_show_nothing():
    good = EXAMPLES["scalar-growth"][0]
    for growth, verdict in ((1.3, NOT_SHOWN), (2.6, NOT_SHOWN), (5.9, FAILS)):
        assert (
            CLAIMS["scalar-growth"](**(good | {"least": 0.55, "growth": growth})).judge().verdict == verdict
        )
    layers = published("t5_norm_by_layer")
    factors = [layers.layer(i)["norm"][-1] / layers.layer(i)["norm"][0] for i in range(1, 13)]
    assert pytest.approx(min(factors), abs=0.05) == GROWN


def test_shares_of_layers_and_their_exponents():
    """Two parts with norms t^0.5 and 2·t^0.4: over a doubling of t the second's ratio falls as by hand."""
    steps = np.array([100, 200, 400, 800])
    norms = Matrix(["a", "b"], [0, 1], steps, np.stack([steps**0.5, 2 * steps**0.4], axis=1))
    assert local_exponents(norms) == pytest.approx([0.5, 0.4])

    def ratio(t, part):
        return (t**0.5, 2 * t**0.4)[part] / np.hypot(t**0.5, 2 * t**0.4)

    moves = 1 - ratio(400.0, 0) / ratio(800.0, 0), 1 - ratio(800.0, 1) / ratio(400.0, 1)
    assert ratio_move(norms) == pytest.approx(max(moves))
    layers = published("t5_norm_by_layer")
    late = [layers.layer(i)["norm"][layers.layer(i)["step"] >= 262_144] for i in range(1, 13)]
    ratios = np.array(late) / np.linalg.norm(late, axis=0)
    move = (1 - ratios.min(1) / ratios.max(1)).max()
    assert ratio_move(t5_trace("encoder").matrix("norm")) == pytest.approx(move)
    assert move == pytest.approx(0.057, abs=5e-4)


def test_runs_of_the_authors_that_fell():
    """PTB post-norm ends at 0.1964 of 0.1983; 20 epochs of AdamW pre-norm fall to 1,929 of 2,791 in three, and grow."""
    norms = lm_runs.norms()
    assert len(norms) == 7
    lowest = {run: norm.min() / norm[0] for run, norm in norms.items() if norm.min() < norm[0]}
    assert lowest == pytest.approx(
        {"penn, control": 0.1964 / 0.1983, "penn, pre_norm-adamw-constant_lr": 1929.2174 / 2790.8515}
    )
    assert [run for run, norm in norms.items() if norm[-1] < norm[0]] == ["penn, control"]


def test_the_authors_runs_with_adamw_saturate():
    last = {run: level[-1] for run, level in lm_runs.levels().items()}
    assert len(last) == 7
    assert min(level for run, level in last.items() if "sgd" not in run) == 0.9966
    assert last["penn, pre_norm-sgd-constant_lr"] == 0.313


def test_the_published_heads():
    """By the middles of the bars; 42 = (1 + … + 83)/83 positions are visible on average, 41.01 in the future."""
    rows = published("attention_positions")
    shares = {}
    for encoder in ("paper-pre-norm", "post-norm"):
        own = (rows["data"] == "penn") & (rows["encoder"] == encoder)
        middle = (rows["positions_from"][own] + rows["positions_to"][own]) / 2
        heads = rows["heads"][own]
        shares[encoder] = heads[middle < 4.1].sum(), heads[middle > 37].sum(), heads.sum()
    assert shares == {"paper-pre-norm": (65, 66, 144), "post-norm": (71, 70, 144)}
    assert sum(range(1, 84)) / 83 == 42
    assert (sum(range(1, 83)) + 1) / 83 == pytest.approx(41.012, abs=5e-4)


def test_a_claim_without_its_stage_is_not_measured():
    claim = CLAIMS["lm-growth"]
    assert judge(claim, Evidence()).verdict == NOT_MEASURED
    failed = judge(claim, Evidence(failed={"language_models": "no space"}))
    assert "no space" in failed.reason


def test_what_cannot_be_measured_leaves_a_claim_open():
    class Unknown(Claim):
        """A rule."""

        id, where, statement, published, source, scope, would_change = "unknown", *[""] * 6
        value: float = number("the value")

        @classmethod
        def measure(cls, _):
            return cls(math.nan)

        def judge(self):
            return holds("It is a number.")

    class Missing(Unknown):
        @classmethod
        def measure(cls, _):
            raise InputError("nothing there")

    found = judge(Missing, Evidence())
    assert found.verdict == NOT_MEASURED
    assert "nothing there" in found.reason
    found = judge(Unknown, Evidence())
    assert found.verdict == NOT_MEASURED
    assert found.measured == {"the value": None}


def test_small_models_do_not_refute_conversion():
    """As in the demo: one model with 4 layers, whose saturated network is less accurate."""
    good = EXAMPLES["conversion"][0] | {"saturated": 1.0, "accurate": 0.0, "converted": 0.0}
    for size in ({"layers": 4.0}, {"epochs": 2.0}, {"layers": None, "epochs": None}):
        ruling = CLAIMS["conversion"](**(good | size)).judge()
        assert ruling.verdict == NOT_SHOWN
        assert "too small to judge" in ruling.reason
    assert CLAIMS["conversion"](**good).judge().verdict == FAILS


def test_a_model_that_keeps_its_accuracy_is_converted_in_part():
    """The limit of 90% of the predictions is not the paper's: without it, accuracy decides."""
    good = EXAMPLES["conversion"][0] | {"converted": 0.0, "least": 0.5}
    ruling = CLAIMS["conversion"](**good).judge()
    assert ruling.verdict == IN_PART
    assert "a limit that is ours" in ruling.reason
    page = (Path(__file__).parents[2] / "docs" / "behavior.md").read_text(encoding="utf-8")
    assert rule(CLAIMS["conversion"]) in " ".join(page.split())


def test_models_that_hardly_grew_do_not_count_as_uniform():
    good = EXAMPLES["uniform-growth"][0]
    alone = good | {
        "models": 0.0,
        "steady": 0.0,
        "left_out": 6.0,
        "largest_growth": 1.4,
        "largest_move": None,
    }
    ruling = CLAIMS["uniform-growth"](**alone).judge()
    assert ruling.verdict == HOLDS  # on T5
    assert "6 models that grew less are left out. The largest factor is 1.40." in ruling.reason
    assert CLAIMS["uniform-growth"](**(alone | {"t5_move": 0.3})).judge().verdict == FAILS


def test_one_pair_of_schedules_does_not_decide():
    """One seed, with base rates 0.01 and 0.03."""
    good = EXAMPLES["schedule-decides"][0]
    pair = good | {"pairs": 1.0, "same_rate": 0.0, "seeds": 1.0, "least": 0.31, "largest": 0.31}
    ruling = CLAIMS["schedule-decides"](**pair).judge()
    assert ruling.verdict == IN_PART
    assert (
        "the two exponents differ by 0.31. Pairs that also differ in the base rate: 1 of 1; seeds: 1."
        in ruling.reason
    )
    assert CLAIMS["schedule-decides"](**(pair | {"pairs": 2.0})).judge().verdict == IN_PART
    assert CLAIMS["schedule-decides"](**(pair | {"pairs": 3.0})).judge().verdict == HOLDS


@pytest.mark.parametrize(
    ("least", "last", "verdict"), [(0.7, 0.995, HOLDS), (0.7, 0.705, FAILS), (0.7, 0.9, NOT_SHOWN)]
)
def test_distant_checkpoints_decide_on_the_direction(least, last, verdict):
    good = EXAMPLES["direction-converges"][0] | {"q": 0.8, "q_low": 0.7, "q_high": 0.9}
    distant = {"doublings": 3.0, "doubled_least": least, "doubled_last": last}
    assert CLAIMS["direction-converges"](**(good | distant)).judge().verdict == verdict
    assert CLAIMS["direction-converges"](**good).judge().verdict == NOT_SHOWN  # by the angles


def test_the_encoders_step_size_is_constant():
    found = judge(CLAIMS["step-size-encoder"], Evidence())
    assert found.measured["largest minus smallest: encoder from 30%"] == pytest.approx(2.49, abs=0.01)
    assert "2.5 encoder" in found.reason
    assert {name for name in found.measured if "decoder" in name or "total" in name} == set()
    whole = judge(CLAIMS["step-size"], Evidence()).measured
    for stack in ("encoder", "decoder"):
        own = judge(CLAIMS[f"step-size-{stack}"], Evidence()).measured
        assert {name: whole[name] for name in own if stack in name} == {
            name: value for name, value in own.items() if stack in name
        }


def pretrained(known):
    """The stage `pretrained` with these means at c = 1000: run -> trained and random."""
    parts = []
    for run, (trained, random) in known.items():
        values = {"saturation": np.array([[trained]]), "saturation_random": np.array([[random]])}
        block = Block("model", ["model"], [None], [None], [0], values, constants={"scale": 1000.0})
        parts.append(Records.from_blocks(run, [block]))
    return Evidence({"pretrained": Saturation(records=Records.joined(parts))})


def test_small_and_base_variants():
    """Footnote 7, by the encoders and by the decoders; a folder is the model of its name."""
    alone = judge(CLAIMS["saturation-small"], pretrained({"minilm": (0.5, 0.1), "t5-small": (0.5, 0.1)}))
    assert alone.verdict == NOT_MEASURED
    known = {"weights/t5-small": (0.7, 0.1), "weights/t5-base": (0.5, 0.1)}
    known |= {"weights/t5-small, decoder": (0.6, 0.1), "weights/t5-base, decoder": (0.7, 0.1)}
    found = judge(CLAIMS["saturation-small"], pretrained(known))
    assert found.verdict == IN_PART
    differences = [value for label, value in found.measured.items() if label.startswith("small minus base")]
    assert differences == pytest.approx([0.2, -0.1])
    assert judge(CLAIMS["saturation-small"], pretrained(dict([*known.items()][:2]))).verdict == HOLDS
    assert judge(CLAIMS["saturation-pretrained"], pretrained(known)).measured["of these closer"] == 1


def test_published_means_decide_where_no_weights_are():
    """The means of the four published lines, by hand from the tables."""
    for evidence in (Evidence(), pretrained({"minilm": (0.5, 0.02)})):
        found = judge(CLAIMS["saturation-pretrained"], evidence)
        assert found.verdict == HOLDS
        assert "None of the four models was measured here, so the published means" in found.reason
        assert "caveat t5-dropout" in found.reason
        for name, trained, random in (
            ("bert-base-cased", 0.19, 0.07),
            ("roberta-base", 0.76, 0.05),
            ("t5-base", 0.56, 0.40),
            ("xlnet-base-cased", 0.38, 0.07),
        ):
            assert found.measured[f"published mean, trained: {name}"] == pytest.approx(trained, abs=0.005)
            assert found.measured[f"published mean, random: {name}"] == pytest.approx(random, abs=0.005)
    good = EXAMPLES["saturation-pretrained"][0] | {"here": 0.0, "trained": {"a": 0.5, "b": 0.5}}
    for random, verdict in (({"a": 0.6, "b": 0.1}, IN_PART), ({"a": 0.6, "b": 0.6}, FAILS)):
        assert CLAIMS["saturation-pretrained"](**good, random=random).judge().verdict == verdict


def test_weights_that_are_not_here():
    good = EXAMPLES["saturation-pretrained"][0]
    ruling = CLAIMS["saturation-pretrained"](**(good | {"here": 0.0})).judge()
    assert ruling.verdict == NOT_MEASURED  # and no published means


def test_layers_of_figure_2_that_are_no_closer():
    """T5's layers 3 to 6 and XLNet's first: listed whatever the verdict."""
    found = judge(CLAIMS["saturation-pretrained"], pretrained({"minilm": (0.5, 0.02)}))
    assert found.verdict == HOLDS  # by the published means
    listed = re.findall(r"(t5|xlnet)[\w-]*, layer (\d+)", found.reason)
    assert listed == [("t5", "3"), ("t5", "4"), ("t5", "5"), ("t5", "6"), ("xlnet", "1")]
    assert all(value < 0 for name, value in found.measured.items() if value and "layer" in name)
