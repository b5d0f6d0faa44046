"""What claims, errata and departures read: exactly the stages that they say they need."""

import importlib.util
import math
import re
import shlex
import sys
from pathlib import Path

import pytest

from normgrowth.cli.main import parser_of
from normgrowth.cli.training_options import settings_of
from normgrowth.lab.cells.axis import LEARNING_RATE, WEIGHT_DECAY
from normgrowth.paper.claim import check, judge
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.discrepancies.caveats import CAVEATS
from normgrowth.paper.discrepancies.departures import DEPARTURES
from normgrowth.paper.discrepancies.errata import ERRATA
from normgrowth.paper.evidence import Evidence, MissingEvidence, TrainedModel
from normgrowth.results import load

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
STAGES = ("theory", "scaling", "pretrained", "figure2_forms", "language_models", "decay")
ALL = {**CLAIMS, **ERRATA, **DEPARTURES, **CAVEATS}


OLDER = {  # the kept records are older than these quantities
    "scalar-growth": "has no share_grown",
    "conversion": "has no predictions of the soft network",
    "heads-local": "has no attended_distance of heads",
    "max-margin": "has no share_separated",
    "saturation-small": "no small and base variant of one model",
}


class Observed(Evidence):
    """Notes which stages are asked for."""

    def __init__(self, known: Evidence) -> None:
        super().__init__(known.results)
        object.__setattr__(self, "read", set())

    def of_stage(self, stage, kind):
        self.read.add(stage)  # pyright: ignore[reportAttributeAccessIssue]
        return super().of_stage(stage, kind)


@pytest.fixture(scope="module")
def benchmark():
    """The script that makes docs/claims.md."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("benchmark_claims", BENCHMARKS / "claims.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def kept(benchmark):
    """What docs/records keep."""
    return benchmark.evidence()


def test_needs_are_what_is_read(kept, benchmark):
    for name, one in ALL.items():
        observed = Observed(benchmark.with_demo(kept) if name in CLAIMS else kept)
        if name in OLDER:
            with pytest.raises(MissingEvidence, match=OLDER[name]):
                one.measure(observed)
        else:
            one.measure(observed)
        assert set(one.needs) == observed.read, name  # pyright: ignore[reportAttributeAccessIssue]


def test_all_is_judged_on_the_kept_records(kept, benchmark):
    page = (BENCHMARKS.parent / "docs" / "claims.md").read_text(encoding="utf-8")
    judgments, checks = benchmark.judged(kept), []
    for claim, found in zip(CLAIMS.values(), judgments, strict=True):
        if claim.id not in OLDER:
            assert found == judge(claim, benchmark.with_demo(kept))
        assert f"### {found.id}: {found.verdict}\n" in page
        for said in (found.reason, found.rule, found.published, found.scope, found.data, found.would_change):
            assert f": {said}" in page, found.id
    for one in (*ERRATA.values(), *DEPARTURES.values(), *CAVEATS.values()):
        checks.append(check(one, kept))
        assert checks[-1].differs, one.id
        assert f": {checks[-1].stated}" in page
        assert f": {checks[-1].correct}" in page
    assert benchmark.counts(judgments) in page
    assert benchmark.covered(judgments, checks) in page


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_without_results_is_named(stage):
    with pytest.raises(MissingEvidence) as caught:
        getattr(Evidence(), stage)
    assert (caught.value.stage, caught.value.reason) == (stage, "it was not run")
    with pytest.raises(MissingEvidence) as caught:
        getattr(Evidence(failed={stage: "no disk"}), stage)
    assert caught.value.reason == "no disk"


def test_typed_values_of_the_kept_records(kept):
    assert kept.theory.table1["paper's encoder"].measured == pytest.approx(1, abs=1e-3)
    assert math.isnan(kept.theory.table1["usual pre-norm encoder"].printed)
    with pytest.raises(MissingEvidence):
        _ = kept.theory.table1["nothing"]
    with pytest.raises(MissingEvidence):
        kept.curve("nothing", bias=True)
    with pytest.raises(MissingEvidence):
        kept.language_models.where(optimizer="nothing")
    assert kept.curve("post_norm", bias=True).at(10) > 0.9
    assert kept.pretrained["minilm"].trained > kept.pretrained["minilm"].random
    models = kept.language_models
    assert len(list(models)) == 13
    first = models.where(corpus="penn", kind="paper_pre_norm", optimizer="adamw", leaking=False, seed=0)[0]
    assert first.last("dev_loss") < first.frequency_loss
    with pytest.raises(MissingEvidence):
        first.last("nothing")
    with pytest.raises(MissingEvidence):
        first.of_heads("nothing")
    with pytest.raises(MissingEvidence):
        _ = kept.figure2_forms["nothing"]
    assert len(kept.decay.edges) == len(kept.decay.learning_rates) == len(kept.decay.predicted) == 20


def test_forms_of_figure_2_at_the_size_of_t5_base(kept):
    """First layer and mean of the five forms; see docs/saturation.md."""
    found = {form: (levels[0], levels.mean()) for form, levels in kept.figure2_forms.items()}
    assert found["encoder"] == pytest.approx((0.27, 0.38), abs=0.02)
    assert found["decoder"] == pytest.approx((0.42, 0.48), abs=0.02)
    assert found["decoder, start token"] == pytest.approx((0.62, 0.58), abs=0.02)
    assert found["decoder, start token, dropout"] == pytest.approx((0.45, 0.37), abs=0.02)
    caveat = check(CAVEATS["t5-dropout"], kept).measured
    assert caveat["here, random, without dropout"] > caveat["published, trained"]


def test_commands_of_the_kept_records(benchmark, kept):
    """The commands in docs/claims.md have the settings of the records."""
    shown = dict(
        re.findall(r"^\| `lab/(\S+)` \| `normgrowth train (.*)` \|$", benchmark.records(), re.MULTILINE)
    )
    runs = {path.name: TrainedModel.read(path).run for path in (benchmark.KEPT / "lab").iterdir()}
    assert shown.keys() == runs.keys()
    for name, command in shown.items():
        assert settings_of(parser_of("train").parse_args(shlex.split(command))) == runs[name].settings
    decay = load(benchmark.KEPT / "decay" / "adamw")
    _, _, *words = benchmark.RECORDS["decay"][1].split()
    arguments = parser_of("sweep").parse_args(words)
    assert settings_of(arguments) == decay.settings
    assert (arguments.x, arguments.y) == (None, None)  # the defaults
    assert (decay.x, decay.y) == (LEARNING_RATE, WEIGHT_DECAY)
    page = (benchmark.DOCS / "claims.md").read_text(encoding="utf-8")
    assert benchmark.records() in page
    for claim, said in (
        ("lm-growth", "`docs/records/lab` and `docs/records/demo`"),
        ("conversion", "`docs/records/lab/penn-paper-adamw-seed2` and `docs/records/demo`"),
    ):
        assert f"{said}, see [Records" in page.partition(f"### {claim}:")[2].partition("###")[0]
