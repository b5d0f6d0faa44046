"""`reproduce`: stages that are kept, redone and lost, and what becomes of the claims that rest on them."""

import json
import shutil
import time
from html import escape

import pytest

from normgrowth.cli.reproduce import write_page
from normgrowth.engine import Threads
from normgrowth.errors import InputError
from normgrowth.paper import reproduce as paper
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.paper_figures import draw_figures
from normgrowth.paper.reproduce import Telling, chosen, key_of, reproduce
from normgrowth.paper.stages.cost import Cost
from normgrowth.paper.stages.plan import Stage, _part, stages
from normgrowth.paper.stages.theory import numbers
from normgrowth.records import Records

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
    page = write_page(tmp_path, draw_figures(again.evidence, tmp_path / "figures"), again.facts())
    assert_page(page, again)
    damaged = tmp_path / "stages" / "theory" / "records.parquet"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    reproduce(tmp_path, only=only, engine=engine, telling=telling)
    assert said[-1][1].endswith(" s")


def assert_page(page, found):
    """Verdicts, Table 1 with what differs from print, and the published figures, as pictures with words."""
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 6_000_000
    for one in found.verdicts:
        assert escape(one.ruling.reason) in text
        assert escape(one.claim.published) in text
    assert "Table 1: degrees of homogeneity" in text
    assert text.count('<img alt="') == 2  # Figures 1 and 5: T5's numbers are always there
    assert "norm-sqrt: in part." in text


def test_the_time_left_is_told(tmp_path, engine, monkeypatch):
    """By the plan before anything has run; then by what stages took; and nothing for those that are kept."""

    def stage(name, seconds):
        def run(work):
            for part in range(1, 5):
                time.sleep(0.05)
                work.progress(part, 4, "")
            return numbers(name, {"value": 1.0})

        return Stage(name, name, (), {}, Cost("nothing", seconds), run)

    monkeypatch.setattr(paper, "AT_ONCE", 0.0)
    monkeypatch.setattr(paper, "stages", lambda scale, data: [stage("theory", 100.0), stage("lab", 300.0)])
    left, parts = [], []
    telling = Telling(
        begins=lambda stage, seconds: left.append(seconds),
        moves=lambda done, of, label, seconds: parts.append(seconds),
    )
    reproduce(tmp_path, only=["table1", "fig1"], engine=engine, telling=telling)
    assert left[0] == pytest.approx(400, abs=0.1)
    assert left[1] < 0.4 * 300  # what was planned as 100 took a fifth of a second, or a little more
    assert parts[3] == pytest.approx(300)  # all of the first stage done, no stage has ended yet
    assert parts[7] == pytest.approx(0)
    assert parts[4] > parts[5] > parts[6] > parts[7]
    left.clear()
    reproduce(tmp_path, only=["table1", "fig1"], engine=engine, telling=telling)
    assert left == [0, 0]


def test_parts_that_are_there_at_once_say_nothing_of_the_pace(tmp_path, engine, monkeypatch):
    """A sweep that goes on: half of its cells are there, the others take their time."""

    def run(work):
        for done in (50, 51, 52):
            work.progress(done, 100, "")
            time.sleep(0.2)
        return numbers("theory", {"value": 1.0})

    stage = Stage("theory", "theory", (), {}, Cost("nothing", 100.0), run)
    monkeypatch.setattr(paper, "stages", lambda scale, data: [stage])
    left = []
    telling = Telling(moves=lambda done, of, label, seconds: left.append(seconds))
    reproduce(tmp_path, only=["table1"], engine=engine, telling=telling)
    assert left[0] == pytest.approx(100, abs=1)  # nothing is known but the plan
    assert left[2] == pytest.approx(0.2 * 48, rel=0.5)


def test_a_stage_that_fails_loses_no_other(tmp_path, engine):
    """The paper's corpora are not there."""
    only = ["lm-growth", "encoder-degree"]
    found = reproduce(tmp_path, scale="paper", only=only, data=tmp_path / "nothing", engine=engine)
    verdicts = {one.claim.id: one.ruling for one in found.verdicts}
    assert verdicts["encoder-degree"].verdict == "holds"
    assert verdicts["lm-growth"].verdict == "undecided"
    assert found.failed["lab"] in verdicts["lm-growth"].reason
    assert "nothing" in found.failed["lab"]


def test_a_stage_goes_on_where_it_was_but_not_from_other_code(tmp_path, engine, monkeypatch):
    made = []

    def stage(version, stop):
        def run(work):
            def part(number):
                if number == stop:
                    raise OSError("the disk is full")
                made.append((version, number))
                return numbers(f"part {number}", {"value": float(number)})

            parts = [_part(work, number, lambda number=number: part(number)) for number in range(3)]
            return Records.joined(parts, {})

        return Stage("theory", "theory", (), {}, Cost("nothing", 1.0), run)

    def run(version, stop=None):
        monkeypatch.setattr(paper, "stages", lambda scale, data: [stage(version, stop)])
        monkeypatch.setattr(paper, "key_of", lambda stage: f"code of version {version}")
        return reproduce(tmp_path, only=["table1"], engine=engine)

    assert "the disk is full" in run(1, stop=2).failed["theory"]
    assert run(1).evidence["theory"].distinct("run") == ["part 0", "part 1", "part 2"]
    assert made == [(1, 0), (1, 1), (1, 2)]  # none twice
    made.clear()
    run(2)
    assert made == [(2, 0), (2, 1), (2, 2)]  # nothing of the older code
    assert (tmp_path / "stages" / "theory" / "work-before-1" / "part-0").is_dir()  # and nothing lost


def test_real_corpora_take_the_place_of_the_embedded_one(tmp_path):
    def corpora(data):
        return {
            name: stage.settings
            for stage in stages("demo", data)
            for name in stage.settings
            if "pre_norm" in name
        }

    assert all(name.startswith("pydoc-") for name in corpora(None))
    (tmp_path / "wikitext-2").mkdir()
    assert all(name.startswith("wikitext-2-") for name in corpora(tmp_path))
    (tmp_path / "penn").mkdir()
    assert all(name.startswith("penn-") for name in corpora(tmp_path))
    assert stages("demo", tmp_path)[-1].settings["settings"]["corpus"] == "penn"
    with pytest.raises(InputError, match="holds neither penn nor wikitext-2"):
        stages("demo", tmp_path / "penn")


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
    (package / "lab" / "cells" / "cell.py").write_text("# other\n")
    changed = {name for name, key in of("demo").items() if key != before[name]}
    assert changed == {"lab", "sweep"}
    assert {name for name, key in of("paper").items() if key == before[name]} == {"theory"}


def test_figures_of_what_is_there(tmp_path):
    paths = draw_figures({}, tmp_path, formats=["svg"])
    assert sorted(path.name for path in paths) == ["fig1.svg", "fig5.svg"]
    assert draw_figures({}, tmp_path, only=["fig1", "norm-sqrt"], formats=["png"]) == [tmp_path / "fig1.png"]
