"""Each kind of result is shown: in the terminal, and on the page."""

import pytest
from golden.examples import EXAMPLES, walk_trace

import normgrowth as ng
from normgrowth.report.page.summary import ORDER
from normgrowth.report.renderers import view
from normgrowth.results import KINDS

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
    "behavior": "behavior",
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
    assert sorted(ORDER) == sorted(KINDS) == sorted(SECTIONS) == sorted(EXAMPLES)


@pytest.fixture(scope="module")
def traced():
    return walk_trace()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_makes_a_page(kind, tmp_path):
    result = next(iter(EXAMPLES[kind].values()))()
    assert result.kind == kind
    page = ng.report(result, tmp_path / "page.html", title="one")
    text = page.path.read_text(encoding="utf-8")
    assert f'<section id="{SECTIONS[kind]}"' in text
    assert str(result)


def test_results_folders_and_published_data_share_a_page(traced, tmp_path):
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
    with pytest.raises(ng.InputError, match="unknown published result"):
        ng.report("published:nothing", tmp_path / "page.html")
