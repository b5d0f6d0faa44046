"""`reproduce`: stages that are kept, redone and lost, and what becomes of the claims that rest on them."""

import json
import subprocess
import sys
from dataclasses import replace
from html import escape

import numpy as np
import pytest

from normgrowth.cli.main import main
from normgrowth.engine import Threads
from normgrowth.errors import FolderMismatch, InputError, SchemaError
from normgrowth.network.scaling.result import Scaling
from normgrowth.paper import finished
from normgrowth.paper import run_stages as paper
from normgrowth.paper.claim import check, judge
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.discrepancies.errata import ERRATA
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.paper_figures import draw_figures
from normgrowth.paper.reproduction import Reproduction
from normgrowth.paper.run_stages import select, settings_of
from normgrowth.paper.stages import STAGES
from normgrowth.paper.stages.stage import Stage, StageSettings
from normgrowth.records import Block, Records
from normgrowth.reproduce import reproduce
from normgrowth.results import load, load_all
from normgrowth.trace.result import Trace

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def engine():
    engine = Threads(1)
    yield engine
    engine.close()


def test_a_stage_is_run_once(tmp_path, engine):
    only = ["encoder-degree", "norm-sqrt"]
    first = reproduce(tmp_path, only=only, engine=engine)
    again = reproduce(tmp_path, only=only, engine=engine)
    assert [(one.name, one.status) for one in first.stages] == [("theory", "ran")]
    assert [(one.name, one.status) for one in again.stages] == [("theory", "kept")]
    assert first.claims == again.claims
    assert [(one.id, one.verdict) for one in first.claims] == [
        ("norm-sqrt", "holds"),
        ("encoder-degree", "holds"),
    ]
    assert_page(tmp_path / "report.html", again)
    assert_round_trip(tmp_path, again)
    damaged = tmp_path / "stages" / "theory" / "records.parquet"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    assert reproduce(tmp_path, only=only, engine=engine).stages[0].status == "ran"


def test_a_second_call_draws_nothing(tmp_path, engine, monkeypatch):
    monkeypatch.setattr(paper, "STAGES", {})  # published numbers alone
    first = reproduce(tmp_path, only=["norm-sqrt", "fig1"], engine=engine)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "figures").iterdir()}
    again = reproduce(tmp_path, only=["norm-sqrt", "fig1"], engine=engine)
    assert again.claims == first.claims
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "figures").iterdir()} == files
    lost = tmp_path / "figures" / "fig1.png"
    lost.unlink()
    reproduce(tmp_path, only=["norm-sqrt", "fig1"], engine=engine)
    assert lost.is_file()
    page = tmp_path / "report.html"
    page.write_text("another page that was drawn by normgrowth", encoding="utf-8")
    with pytest.raises(InputError):  # it is not a page of normgrowth
        reproduce(tmp_path, only=["norm-sqrt", "fig1"], engine=engine)
    page.unlink()
    reproduce(tmp_path, only=["norm-sqrt"], engine=engine)
    monkeypatch.setattr(finished, "LIBRARIES", ("numpy",))  # as after an update of a library
    files = page.stat().st_mtime_ns
    reproduce(tmp_path, only=["norm-sqrt"], engine=engine)
    assert page.stat().st_mtime_ns > files


def test_a_second_call_loads_neither_torch_nor_matplotlib(tmp_path):
    code = f"""
import sys
import normgrowth.paper.run_stages

if __name__ == "__main__":
    normgrowth.paper.run_stages.STAGES = {{}}  # published numbers alone
    normgrowth.reproduce({str(tmp_path)!r}, only=["norm-sqrt", "fig1"])
    print(*sys.modules)
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    for loaded in (True, False):
        said = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
        assert ("matplotlib" in said.split()) == loaded
        assert "torch" not in said.split()


def assert_page(page, found):
    """Verdicts and Table 1 with what differs from print."""
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 6_000_000
    for claim in found.claims:
        assert escape(claim.reason) in text
        assert escape(claim.published) in text
    assert "Table 1: degrees of homogeneity" in text


def assert_round_trip(folder, result):
    loaded = load(folder)
    assert isinstance(loaded, Reproduction)
    for name in ("scale", "only", "claims", "stages", "table1", "provenance"):
        assert getattr(loaded, name) == getattr(result, name)
    assert loaded.records.table.equals(result.records.table)
    row = result.records.where(level="claim", name="encoder-degree", quantity="usual pre-norm")
    assert row.table["value"].to_pylist() == pytest.approx([3.0], abs=1e-3)
    assert result["norm-sqrt"].reason in " ".join(str(result).split())
    assert result.plot.names == ["verdicts"]
    assert result.plot().axes
    assert [path for path, _ in load_all(folder)] == [folder]


def test_figures_have_the_verdicts_of_their_claims(tmp_path, engine, monkeypatch):
    monkeypatch.setattr(paper, "STAGES", {})  # published numbers alone
    found = reproduce(tmp_path, only=["fig1", "norm-sqrt"], engine=engine)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('<img alt="') == 1
    assert f"norm-sqrt: holds. {escape(found.claims[0].reason)}" in text
    assert found.claims[0].figure == "fig1"


def test_another_selection_is_added_to_the_folder(tmp_path, engine, monkeypatch):
    monkeypatch.setattr(paper, "STAGES", {})  # published numbers alone
    first = reproduce(tmp_path, only=["norm-sqrt", "fig1"], engine=engine)
    second = reproduce(tmp_path, only=["step-size", "fig5"], engine=engine)
    assert [claim.id for claim in second.claims] == ["step-size"]
    whole = load(tmp_path)
    assert whole.claims == (*first.claims, *second.claims)
    assert whole.only == ("norm-sqrt", "fig1", "step-size", "fig5")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('<img alt="') == 2
    again = reproduce(tmp_path, only=["step-size", "fig5"], engine=engine)  # kept
    assert (again.claims, again.only) == (second.claims, second.only)
    assert reproduce(tmp_path, only=["norm-sqrt"], engine=engine).claims == first.claims
    assert [claim.id for claim in load(tmp_path).claims] == ["norm-sqrt", "step-size"]


def test_a_saved_reproduction_is_not_overwritten_by_another_one(tmp_path):
    claim = judge(CLAIMS["norm-sqrt"], Evidence())
    result = Reproduction.of(claims=(claim,), errata=(check(ERRATA["lemma-7"], Evidence()),))
    result.save(tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded, Reproduction)
    assert (loaded.claims, loaded.errata) == (result.claims, result.errata)
    result.save(tmp_path)  # the same one again
    for different in (
        replace(result, scale="paper"),
        replace(result, only=("norm-sqrt",)),
        replace(result, claims=(replace(claim, options=("--data", "corpora")),)),
        replace(result, claims=(replace(claim, verdict="not shown"),)),
        replace(result, errata=()),
    ):
        with pytest.raises(FolderMismatch):
            different.save(tmp_path)
        assert load(tmp_path).claims == result.claims
    replace(result, scale="paper").save(tmp_path, overwrite=True)
    assert load(tmp_path).scale == "paper"
    with pytest.raises(KeyError):
        _ = result["nothing"]


def test_an_unknown_verdict_is_refused(tmp_path):
    Reproduction.of(claims=(judge(CLAIMS["norm-sqrt"], Evidence()),)).save(tmp_path)
    path = tmp_path / "claims.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["claims"][0]["verdict"] = "perhaps"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(SchemaError) as caught:
        load(tmp_path)
    assert "verdict" in caught.value.place


def test_results_of_stages_are_loaded_with_their_types(tmp_path, engine, monkeypatch):
    stages = [
        STAGES["theory"],
        stage_of(lambda *_: Scaling(records=numbers("x", 1.0).records), name="scaling"),
    ]
    monkeypatch.setattr(paper, "STAGES", {stage.name: stage for stage in stages})
    reproduce(tmp_path, only=["table1", "scaling-curves"], engine=engine)
    assert isinstance(load(tmp_path / "stages" / "scaling"), Scaling)
    table = Records.read(tmp_path / "stages" / "theory").where(level="components", quantity="measured")
    assert len(table) > 50
    with pytest.raises(InputError, match="load the output folder of `reproduce`") as caught:
        load(tmp_path / "stages" / "theory")  # numbers that no verb returns
    assert len(str(caught.value).splitlines()) == 1
    (found,) = Reproduction.stage_results(tmp_path)
    assert (found[0], type(found[1])) == ("scaling", Scaling)


def test_a_stage_that_fails_loses_no_other(tmp_path, engine):
    """The paper's corpora are not there."""
    only = ["lm-growth", "encoder-degree"]
    found = reproduce(tmp_path, scale="paper", only=only, data=tmp_path / "nothing", engine=engine)
    verdicts = {one.id: one for one in found.claims}
    assert verdicts["encoder-degree"].verdict == "holds"
    assert verdicts["lm-growth"].verdict == "not measured here"
    (failed,) = found.failed
    assert failed.name == "language_models"
    assert failed.reason in verdicts["lm-growth"].reason
    assert "nothing" in failed.reason


def stage_of(run, version=1, name="theory"):
    settings = {"demo": StageSettings(), "paper": StageSettings()}
    takes = {"demo": "a moment", "paper": "a moment"}
    return Stage(name=name, title=name, version=version, settings=settings, takes=takes, run=run)


def numbers(run, value):
    block = Block("model", ["model"], [None], [None], [0], {"value": np.array([[value]])})
    return Trace(records=Records.from_blocks(run, [block]))


def test_a_stage_resumes_but_not_from_another_version(tmp_path, engine, monkeypatch):
    made = []

    def stage(version, stop):
        def run(context, settings):
            def part(number):
                if number == stop:
                    raise OSError("the disk is full")
                made.append((version, number))
                return numbers(f"part {number}", float(number))

            parts = [context.cached(f"part-{n}", Trace, lambda n=n: part(n)) for n in range(3)]
            return Trace(records=Records.joined([part.records for part in parts]))

        return stage_of(run, version)

    def run(version, stop=None):
        monkeypatch.setattr(paper, "STAGES", {"theory": stage(version, stop)})
        return reproduce(tmp_path, only=["table1"], engine=engine)

    assert "the disk is full" in run(1, stop=2).stages[0].reason
    assert (tmp_path / "stages" / "theory" / "error.log").is_file()
    assert run(1).stages[0].status == "ran"
    stage_folder = tmp_path / "stages" / "theory"
    assert Records.read(stage_folder).distinct("run") == ["part 0", "part 1", "part 2"]
    assert not (tmp_path / "stages" / "theory" / "error.log").is_file()
    assert made == [(1, 0), (1, 1), (1, 2)]  # none twice
    made.clear()
    assert run(2).stages[0].status == "ran"
    assert made == [(2, 0), (2, 1), (2, 2)]  # nothing of the other version
    assert run(2).stages[0].status == "kept"
    made.clear()
    assert run(1).stages[0].status == "ran"
    assert not made  # and nothing lost


def test_a_fault_in_one_stage_does_not_stop_the_others(tmp_path, engine, monkeypatch):
    def broken(context, settings):
        raise RuntimeError("a fault")

    stages = [
        stage_of(broken),
        stage_of(lambda *_: Scaling(records=numbers("x", 1.0).records), name="scaling"),
    ]
    monkeypatch.setattr(paper, "STAGES", {stage.name: stage for stage in stages})
    found = reproduce(tmp_path, only=["table1", "scaling-curves"], engine=engine)
    assert found.claims[0].verdict == "not measured here"
    assert [one.status for one in found.stages] == ["failed", "ran"]
    log = (tmp_path / "stages" / "theory" / "error.log").read_text(encoding="utf-8")
    assert "RuntimeError: a fault" in log
    assert "broken" in log


def test_progress_names_the_stage(tmp_path, engine, monkeypatch):
    def run(context, settings):
        context.done(1, 2, "half")
        return numbers("x", 1.0)

    monkeypatch.setattr(paper, "STAGES", {"theory": stage_of(run)})
    told = []
    reproduce(tmp_path, only=["table1"], engine=engine, progress=lambda *args: told.append(args))
    assert told == [(0, 1, "theory: theory"), (1, 2, "theory: half")]


def test_real_corpora_replace_the_embedded_one(tmp_path):
    def corpora(data):
        settings = settings_of("demo", data)
        (corpus,) = settings["language_models"].corpora
        assert settings["decay"].corpus == corpus
        assert all(name.startswith(f"{corpus}-") for name in settings["language_models"].models())
        return corpus

    assert corpora(None) == "pydoc"
    (tmp_path / "wikitext-2").mkdir()
    assert corpora(tmp_path) == "wikitext-2"
    (tmp_path / "penn").mkdir()
    assert corpora(tmp_path) == "penn"
    with pytest.raises(InputError, match="contains neither penn nor wikitext-2"):
        settings_of("demo", tmp_path / "penn")


def test_a_reproduction_of_another_scale_is_refused(tmp_path, engine):
    reproduce(tmp_path, only=["norm-sqrt"], engine=engine)
    with pytest.raises(FolderMismatch):
        reproduce(tmp_path, only=["norm-sqrt"], scale="paper", engine=engine)
    (tmp_path / "request.json").unlink()
    with pytest.raises(FolderMismatch):
        reproduce(tmp_path, only=["norm-sqrt"], scale="paper", engine=engine)
    reproduce(tmp_path, only=["norm-sqrt"], scale="paper", engine=engine, overwrite=True)


def test_only_names_what_there_is():
    claims, needed = select(["fig2", "heads-bimodal"])
    assert [claim.id for claim in claims] == ["heads-bimodal"]
    assert needed == {"pretrained", "language_models"}
    assert select([])[0] == list(CLAIMS.values())
    with pytest.raises(InputError, match="unknown name 'fig7'; choose from table1"):
        select(["fig7"])


def test_every_claim_rests_on_stages_that_there_are():
    assert {stage for claim in CLAIMS.values() for stage in claim.needs} <= STAGES.keys()


def test_keys_have_the_version_and_the_settings():
    keys = [
        replace(stage, version=version).key(settings)
        for stage in STAGES.values()
        for version in (1, 2)
        for settings in dict.fromkeys(stage.settings.values())
    ]
    assert len(set(keys)) == len(keys)
    for stage in STAGES.values():
        assert stage.takes.keys() == stage.settings.keys() == {"demo", "paper"}


def test_the_command_says_how_long_it_takes(capsys, tmp_path):
    here = ["reproduce", "--list", "-o", str(tmp_path)]
    assert main([*here, "--scale", "paper", "--only", "fig6,norm-sqrt", "--wide"]) == 0
    printed = capsys.readouterr()
    assert not printed.err
    line, free = printed.out.splitlines()[2:]
    assert line.split()[:3] == ["decay", "Figure", "6:"]
    assert STAGES["decay"].takes["paper"] in line
    assert free.split()[0] == "-"
    assert free.split()[-1] == "norm-sqrt"
    assert main([*here, "--wide"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == [*STAGES, "-"]


def test_the_list_of_stages_as_json(capsys, tmp_path):
    (tmp_path / "stages" / "decay").mkdir(parents=True)
    (tmp_path / "stages" / "decay" / paper.KEY).write_text("{}")
    assert (
        main(["reproduce", "--list", "--json", "--only", "weight-decay,fig4,norm-sqrt", "-o", str(tmp_path)])
        == 0
    )
    listed = json.loads(capsys.readouterr().out)
    assert listed["scale"] == "demo"
    assert [(stage["name"], stage["finished"], stage["claims"]) for stage in listed["stages"]] == [
        ("scaling", False, []),
        ("decay", True, ["weight-decay"]),
        ("", True, ["norm-sqrt"]),
    ]


def test_figures_of_what_is_there(tmp_path):
    paths = draw_figures(Evidence(), tmp_path, formats=["svg"])
    assert sorted(path.name for path in paths) == ["fig1.svg", "fig5.svg"]
    assert draw_figures(Evidence(), tmp_path, only=["fig1", "norm-sqrt"], formats=["png"]) == [
        tmp_path / "fig1.png"
    ]


def test_the_demo_takes_at_most_four_minutes_on_two_cores():
    unit = {"second": 1, "seconds": 1, "minute": 60, "minutes": 60}
    words = [stage.takes["demo"].split() for stage in STAGES.values()]
    assert sum(float(count) * unit[name] for count, name in words) <= 240
