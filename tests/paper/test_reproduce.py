"""`reproduce`: stages that are kept, redone and lost, and what becomes of the claims that rest on them."""

import json
import shutil

import pytest

from normgrowth.engine import Threads
from normgrowth.errors import InputError
from normgrowth.paper import reproduce as paper
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.figures import draw_figures
from normgrowth.paper.reproduce import Telling, chosen, key_of, reproduce
from normgrowth.paper.stages.plan import stages

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def engine():
    engine = Threads(1)
    yield engine
    engine.close()


def test_a_stage_is_run_once(tmp_path, engine):
    said = []
    telling = Telling(ends=lambda stage, how: said.append((stage.name, how)))
    only = ["encoder-degree", "norm-sqrt"]
    first = reproduce(tmp_path, only=only, engine=engine, telling=telling)
    again = reproduce(tmp_path, only=only, engine=engine, telling=telling)
    assert [name for name, _ in said] == ["theory", "theory"]
    assert said[0][1].endswith(" s")
    assert said[1][1] == "as it was"
    assert [one.ruling for one in first.verdicts] == [one.ruling for one in again.verdicts]
    assert [one.claim.id for one in first.verdicts] == ["norm-sqrt", "encoder-degree"]
    written = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    assert [claim["verdict"] for claim in written["claims"]] == ["in part", "holds"]
    damaged = tmp_path / "stages" / "theory" / "records.parquet"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    reproduce(tmp_path, only=only, engine=engine, telling=telling)
    assert said[-1][1].endswith(" s")


def test_a_stage_that_fails_loses_no_other(tmp_path, engine):
    """The paper's corpora are not there."""
    only = ["lm-growth", "encoder-degree"]
    found = reproduce(tmp_path, scale="paper", only=only, data=tmp_path / "nothing", engine=engine)
    verdicts = {one.claim.id: one.ruling for one in found.verdicts}
    assert verdicts["encoder-degree"].verdict == "holds"
    assert verdicts["lm-growth"].verdict == "undecided"
    assert found.failed["lab"] in verdicts["lm-growth"].reason
    assert "nothing" in found.failed["lab"]


def test_only_names_what_there_is():
    claims, needed = chosen(["fig2", "heads-bimodal"])
    assert [claim.id for claim in claims] == ["heads-bimodal"]
    assert needed == {"pretrained", "lab"}
    assert chosen([])[0] == list(CLAIMS.values())
    with pytest.raises(InputError, match="--only fig7: is none of fig1"):
        chosen(["fig7"])


def test_every_claim_rests_on_stages_that_there_are():
    for scale in ("demo", "paper"):
        assert {stage for claim in CLAIMS.values() for stage in claim.stages} <= {
            stage.name for stage in stages(scale)
        }


def test_a_stage_is_redone_when_its_code_or_settings_change(tmp_path, monkeypatch):
    package = tmp_path / "normgrowth"
    shutil.copytree(paper.files("normgrowth"), package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(paper, "files", lambda _: package)
    of = lambda scale: {stage.name: key_of(stage) for stage in stages(scale)}  # noqa: E731
    before = of("demo")
    assert of("demo") == before
    (package / "report" / "sweep.py").write_text("# other\n")
    assert of("demo") == before
    (package / "training" / "cells.py").write_text("# other\n")
    changed = {name for name, key in of("demo").items() if key != before[name]}
    assert changed == {"lab", "sweep"}
    assert {name for name, key in of("paper").items() if key == before[name]} == {"theory"}


def test_figures_of_what_is_there(tmp_path):
    paths = draw_figures({}, tmp_path, formats=["svg"])
    assert sorted(path.name for path in paths) == ["fig1.svg", "fig5.svg"]
    assert draw_figures({}, tmp_path, only=["fig1", "norm-sqrt"], formats=["png"]) == [tmp_path / "fig1.png"]
