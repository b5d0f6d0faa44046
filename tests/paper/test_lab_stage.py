"""The stage `lab` with two tiny models, trained for real: what is kept of them, and what claims make of it."""

from dataclasses import replace

import pytest

from normgrowth.engine import Threads
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.claims.verdicts import UNDECIDED, judged
from normgrowth.paper.errata import ERRATA, checked
from normgrowth.paper.figures import figures
from normgrowth.paper.stages.lab import lab
from normgrowth.training.settings import preset

TINY = preset(
    "tiny",
    "pydoc",
    min_count=20,
    steps=24,
    evaluate="powers",
    dev_sentences=20,
    saturation_sentences=4,
    track="2",
)
MODELS = {
    "true": TINY,
    "sgd": replace(TINY, optimizer="sgd", lr=0.1),
    "leaking": replace(TINY, leaking=True),
}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    engine = Threads(1)
    said = []
    folder = tmp_path_factory.mktemp("lab")
    records = lab(folder, MODELS, on=engine, progress=lambda *told: said.append(told))
    engine.close()
    assert said == [(i + 1, 3, name) for i, name in enumerate(MODELS)]
    return {"lab": records}


def test_three_runs_for_each_model(evidence):
    records = evidence["lab"]
    runs = {f"{name}{more}" for name in MODELS for more in ("", ", checkpoints", ", heads")}
    assert set(records.distinct("run")) == runs
    assert records.made_by["models"]["leaking"] == {
        "kind": "paper_pre_norm",
        "optimizer": "adamw",
        "leaking": True,
        "corpus": "pydoc",
        "seed": 0,
    }
    steps, norms = records.where(run="true").series("norm")
    assert steps[-1] == 24
    assert (norms > 0).all()
    heads = records.where(run="true, heads", scope="head", quantity="attended_window")
    assert len(heads) == 4  # at the last step only


@pytest.mark.parametrize("name", ["uniform-growth", "lm-growth", "saturation-lm", "heads-bimodal"])
def test_claims_are_judged_by_it(evidence, name):
    found = judged(CLAIMS[name], evidence)
    assert found.ruling.verdict != UNDECIDED, found.ruling.reason


def test_growth_is_what_the_records_say(evidence):
    found = judged(CLAIMS["lm-growth"], evidence).numbers
    factors = []
    for name in ("true", "sgd"):
        _, norms = evidence["lab"].where(run=name).series("norm")
        factors.append(norms[-1] / norms[0])
    assert found["models"] == 2
    assert found["least factor"] == pytest.approx(min(factors))
    assert found["largest factor"] == pytest.approx(max(factors))


@pytest.mark.parametrize("name", ["mask", "padding"])
def test_departures_are_measured(evidence, name):
    assert checked(ERRATA[name], evidence).fails is not None


def test_figures_are_drawn(evidence):
    assert figures(evidence).keys() == {"fig1", "fig3", "fig5"}
