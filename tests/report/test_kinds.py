"""Each kind of result is shown: in the terminal, and on the page."""

from pathlib import Path

import numpy as np
import pytest
from report_records import sweep_records
from synthetic_series import walk, write_series

import normgrowth as ng
from normgrowth.lab.run import CorpusSummary
from normgrowth.records import Block
from normgrowth.report.dispatch import view
from normgrowth.report.page.write import ORDER
from normgrowth.results import KINDS, Result, load

RECORDS = Path(__file__).parents[2] / "docs" / "records"
SECTIONS = {  # kind -> the id of a section that it has
    "trace": "growth",
    "findings": "findings",
    "fits": "fits",
    "dynamics": "dynamics",
    "comparison": "comparison",
    "parameters": "parameters",
    "degrees": "degrees",
    "saturation": "saturation",
    "heads": "heads",
    "scaling": "scaling",
    "run": "learning",
    "sweep": "sweep",
    "reproduction": "claims",
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_renderers(kind):
    terminal, page, sentences = (view(part, kind) for part in ("terminal", "page.sections", "sentences"))
    assert terminal is not None
    assert page is not None
    assert callable(terminal.show)
    assert callable(page.sections)
    assert kind in ORDER
    figures = view("figures", kind)
    assert figures is None or all(map(callable, figures.FIGURES.values()))
    assert sentences is None or sentences.__doc__


def test_each_section_belongs_to_a_kind():
    assert sorted(ORDER) == sorted(KINDS) == sorted(SECTIONS)


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series")
    write_series(folder, walk(8))
    return folder


@pytest.fixture(scope="module")
def traced(series):
    return ng.trace(series)


def made(kind, series, traced) -> Result:
    """A small result of each kind; networks are measured on a few sentences with random weights."""
    import torch

    from normgrowth.paper.reproduction import Reproduction, StageOutcome

    def block():
        torch.manual_seed(0)
        return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()

    def trained():
        records = traced.records.where(level="model")
        values = {"dev_loss": np.array([[3.0], [2.0]])}
        losses = Block("model", ["model"], [None], [None], list(traced.steps[:2]), values)
        rows = ng.Records.from_blocks(records.single_run(), [losses])
        settings, corpus = ng.TrainSettings(corpus="penn"), CorpusSummary("penn")
        return ng.Run(records=ng.Records.joined([records, rows]), settings=settings, corpus=corpus)

    makers = {
        "trace": lambda: traced,
        "findings": lambda: ng.lint(series),
        "fits": lambda: ng.fit(traced, bootstrap=0),
        "dynamics": lambda: ng.dynamics(traced, "0.01"),
        "comparison": lambda: ng.compare(traced, traced),
        "parameters": lambda: ng.parameters(series),
        "degrees": lambda: ng.degrees(block(), torch.ones(1, 3, 8)),
        "saturation": lambda: load(RECORDS / "minilm"),
        "heads": lambda: ng.heads("minilm", ["a few words", "some more"], exact=False),
        "scaling": lambda: load(RECORDS / "figure4"),
        "run": trained,
        "sweep": lambda: ng.Sweep.from_stored(sweep_records()),
        "reproduction": lambda: Reproduction.of(stages=(StageOutcome("theory"),)),
    }
    return makers[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_makes_a_page(kind, series, traced, tmp_path):
    result = made(kind, series, traced)
    assert result.kind == kind
    page = ng.report(result, tmp_path / "page.html", title="one")
    text = page.path.read_text(encoding="utf-8")
    assert f'<section id="{SECTIONS[kind]}"' in text
    assert str(result)


def test_results_folders_and_published_data_share_a_page(series, traced, tmp_path):
    traced.save(tmp_path / "saved")
    given = [traced, ng.fit(traced, bootstrap=0), tmp_path / "saved", "published:t5"]
    page = ng.report(given, tmp_path / "page.html", fit=False)
    text = page.path.read_text(encoding="utf-8")
    assert text.count('<section id="growth"') == text.count('<section id="fits"') == 1
    assert "published:t5" in text
    with pytest.raises(ng.InputError, match="overwrite"):
        ng.report(traced, page.path)
    assert ng.report(traced, page.path, overwrite=True).path == page.path


def test_a_page_lies_in_the_first_folder_else_here(traced, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = traced.save(tmp_path / "saved")
    assert ng.report([folder, traced], fit=False).path == folder / "report.html"
    assert ng.report([traced, folder], fit=False).path.resolve() == tmp_path / "report.html"


def test_nothing_to_report_is_refused(tmp_path):
    with pytest.raises(ng.InputError, match="nothing to report"):
        ng.report([], tmp_path / "page.html")
    with pytest.raises(ng.InputError, match="no published result"):
        ng.report("published:nothing", tmp_path / "page.html")
