"""The page, without a browser: what it holds, how large it is, and that no name in it is anything but a name."""

import base64
import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import HOSTILE, big, of_kind, sweep_records, write_trace

import normgrowth as ng
from normgrowth.cli.main import main
from normgrowth.errors import InputError, SchemaError
from normgrowth.records import Block, Records
from normgrowth.report.page import document
from normgrowth.report.page.document import LARGEST, Document, page
from normgrowth.report.page.packing import thinned
from normgrowth.report.page.pieces import Chart, ChartAxis, ChartCurve, Section
from normgrowth.report.page.run_tables import counted_notes
from normgrowth.report.table_columns import Table, numbers, words
from normgrowth.stored_result import StoredResult


def report(folders, path, *, fit=False, **options):
    """The path of the page; each is written anew."""
    return ng.report(folders, path, fit=fit, overwrite=True, **options).path


TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "a",
        "header",
        "div",
        "h1",
        "button",
        "nav",
        "main",
        "p",
    ),
    *(
        "section",
        "h2",
        "h3",
        "figure",
        "figcaption",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "pre",
        "script",
    ),
    *("noscript", "img", "details", "summary"),
}


class Seen(HTMLParser):
    """Tags, attributes, and what stands in scripts and elsewhere."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.scripts, self.words = set(), [], [], []
        self.ids, self._inside = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [name for name, _ in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        else:
            self.words.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data[:80]}")


def data_of(text):
    return json.loads(Seen(text).scripts[0])


def array(data, place):
    kind, packed = data["arrays"][place]
    return np.frombuffer(base64.b64decode(packed), f"<{kind}")


@pytest.fixture
def folder(trace, tmp_path):
    write_trace(trace(layers=4, steps=30), tmp_path / "walk")
    return tmp_path / "walk"


def test_curves_are_the_numbers_of_the_records(folder):
    text = report([folder], folder / "report.html").read_text(encoding="utf-8")
    data, records = data_of(text), Records.read(folder)
    for chart, quantity in (("layers", "norm"), ("cosine", "cosine"), ("alignment", "alignment")):
        curves = {curve["label"]: curve for curve in data["charts"][chart]["curves"]}
        for name in ("layer.0", "layer.3"):
            steps, values = records.series(quantity, level="layer", name=name)
            assert np.array_equal(array(data, curves[name]["x"]), steps.astype("<f4"))
            assert np.array_equal(array(data, curves[name]["y"]), values.astype("<f4"), equal_nan=True)
    assert data["charts"]["norm"]["x"]["steps"]


def test_steps_beyond_float32_are_kept(trace, tmp_path):
    """2^24 + 1 has no float32. Values stay float32: a screen shows no more."""
    records = trace(layers=2, steps=5, every=2**24 + 1)
    write_trace(records, tmp_path / "long")
    text = report([tmp_path / "long"], tmp_path / "p.html").read_text(encoding="utf-8")
    data = data_of(text)
    (curve,) = data["charts"]["norm"]["curves"]
    assert array(data, curve["x"]).tolist() == records.distinct("step")
    assert data["arrays"][curve["y"]][0] == "f4"


def test_single_steps_of_a_tracker_are_not_called_checkpoints(trace, tmp_path):
    """Its cosine is between the weights before and after one training step, not between measured steps."""
    write_trace(trace(layers=2, steps=5), tmp_path / "run", {"tracked": True})
    text = report([tmp_path / "run"], tmp_path / "p.html").read_text(encoding="utf-8")
    said = " ".join(Seen(text).words)
    assert "(5 measured steps)" in said
    assert data_of(text)["charts"]["cosine"]["y"]["label"] == "cosine to the weights one step before"
    assert "previous checkpoint" not in said
    write_trace(trace(layers=2, steps=5, seed=1), tmp_path / "walk")
    both = report([tmp_path / "run", tmp_path / "walk"], tmp_path / "p.html").read_text(encoding="utf-8")
    alt = re.search(r'<figure id="cosine".*?<p class="alt">(.*?)</p>', both, re.S)[1]
    assert "one training step" in alt
    assert "between checkpoints" in alt


def test_texts_of_charts_are_made_from_data_not_found_by_words(trace, tmp_path):
    names = ["layers of the squared norm", "squared norm"]
    write_trace(trace(layers=2, steps=5, names=names), tmp_path / "walk")
    text = report([tmp_path / "walk"], tmp_path / "p.html").read_text(encoding="utf-8")
    alts = dict(re.findall(r'<figure id="(\w+)".*?<p class="alt">(.*?)</p>', text, re.S))
    assert alts["budget"].count("run: ") == 1
    assert "%" in alts["budget"]
    assert alts["layers"].count("run: ") == 1
    assert "Of 2 layers" in alts["layers"]


@pytest.mark.parametrize("prefix", ["evaluation_", ""])
def test_tokens_of_the_evaluation_text_are_not_tokens_of_training(trace, tmp_path, prefix):
    """The page says what the tokens are, also of records whose quantity was called tokens."""
    whole, steps = trace(layers=2, steps=3), [0, 2000, 4000]
    values = {"saturation": [0.1, 0.2, 0.3], f"{prefix}tokens": [231.0] * 3, f"{prefix}sentences": [12.0] * 3}
    block = Block(
        "model", ["model"], [None], [None], steps, {q: np.array(v)[:, None] for q, v in values.items()}
    )
    text = {"source": "news.txt", "sentences": 12, "tokens": 231}
    fields = of_kind("saturation", models={"run": {"name": "run", "text": text}}, steps=steps)
    StoredResult(Records.joined([whole, Records.from_blocks("run", [block])]), fields).write(
        tmp_path / "series"
    )
    text = report([tmp_path / "series"], tmp_path / "p.html").read_text(encoding="utf-8")
    said = " ".join(Seen(text).words)
    assert "(3 checkpoints)" in said
    assert re.search("3 steps.*12 sentences.*231 tokens of news.txt", said)


def test_summary_says_what_grew_and_by_which_law(folder):
    text = report([folder], folder / "p.html", fit=True).read_text(encoding="utf-8")
    said = " ".join(Seen(text).words)
    assert "Growth laws" in said
    law = [c for c in data_of(text)["charts"]["norm"]["curves"] if c["provenance"] == "derived"]
    assert len(law) == 1


def test_runs_of_several_folders_are_laid_over_each_other(trace, tmp_path):
    write_trace(trace(layers=2, steps=20), tmp_path / "a")
    write_trace(trace(layers=3, steps=25, seed=1), tmp_path / "b")
    text = report([tmp_path / "a", tmp_path / "b"], tmp_path / "p.html").read_text(encoding="utf-8")
    data = data_of(text)
    assert data["runs"] == ["run", "run (b)"]
    assert [c["run"] for c in data["charts"]["norm"]["curves"]] == data["runs"]
    assert len(data["charts"]["layers"]["curves"]) == 5
    assert {c["dash"] for c in data["charts"]["layers"]["curves"]} == {0, 1}


def test_a_folder_of_folders_is_all_of_them(trace, tmp_path):
    for name in ("a", "b", "c"):
        write_trace(trace(layers=2, steps=5), tmp_path / "runs" / name)
    text = report([tmp_path / "runs"], tmp_path / "p.html").read_text(encoding="utf-8")
    assert len(data_of(text)["runs"]) == 3


def test_a_training_run_has_its_tensors_from_the_tracker(trace, tmp_path):
    whole = trace(layers=2, steps=6)
    steps = list(range(0, 12000, 2000))
    tensors = Block("tensor", ["w", "b"], [0, 0], ["norm", "norm"], steps, {"norm": np.ones((6, 2))})
    write_trace(whole, tmp_path / "lab")
    tracked = StoredResult(
        Records.joined([whole, Records.from_blocks("run", [tensors])]), of_kind("trace", tracked=True)
    )
    tracked.write(tmp_path / "lab" / "tracker")
    data = data_of(report([tmp_path / "lab"], tmp_path / "p.html").read_text(encoding="utf-8"))
    assert data["runs"] == ["run"]
    assert [curve["label"] for curve in data["charts"]["tensors"]["curves"]] == ["w", "b"]


def test_hostile_names_are_text(trace, tmp_path):
    records = trace(layers=len(HOSTILE), steps=4, names=list(HOSTILE))
    tensor = Block("tensor", HOSTILE, [0] * 7, ["norm"] * 7, [0, 1], {"norm": np.ones((2, 7))})
    more = Records.from_blocks("run", [tensor])
    fields = {
        **of_kind("trace"),
        "source": HOSTILE[0],
        "notes": list(HOSTILE),
        HOSTILE[1]: HOSTILE[2],
        "problems": [],
    }
    StoredResult(Records.joined([records, more]), fields).write(tmp_path / "x")
    path = report([tmp_path / "x"], tmp_path / "p.html", title=HOSTILE[0], fit=True)
    text = path.read_text(encoding="utf-8")
    seen = Seen(text)
    assert seen.tags <= TAGS
    assert not [name for name in seen.attributes if name.startswith("on")]
    assert len(seen.scripts) == 4  # the data, the library's two, ours
    assert len(seen.ids) == len(set(seen.ids))
    shown = "".join(seen.words)
    assert HOSTILE[1] in shown  # as it is spelled
    assert "\u202e" not in shown
    assert "\u202e" not in str(json.loads(seen.scripts[0]))
    labels = [curve["label"] for curve in json.loads(seen.scripts[0])["charts"]["layers"]["curves"]]
    assert HOSTILE[0] in labels


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_becomes_html(title, cell):
    curve = ChartCurve(cell, [1.0, 2.0], [1.0, 2.0])
    chart = Chart("c", title, cell, ChartAxis(cell), ChartAxis(title), [curve])
    section = Section("s", title, [cell], [Table(title, [words(cell, [cell])])], [title])
    text = "".join([document._section(section), document._item(chart)])
    seen = Seen(f"<body>{text}</body>")
    assert seen.tags <= TAGS
    assert set(seen.attributes) <= {
        "id",
        "class",
        "role",
        "scope",
        "tabindex",
        "aria-label",
        "aria-labelledby",
    }
    spelled = document._inert(json.dumps({"label": cell}))
    assert not set("<>&") & set(spelled)
    assert json.loads(spelled) == {"label": cell}


@given(st.integers(1, 3000), st.integers(20, 500), st.sampled_from(["even", "powers", "random"]))
def test_thinning_keeps_the_ends_the_order_and_the_limit(count, most, kind):
    rng = np.random.default_rng(count)
    x = {
        "even": np.arange(count) * 10.0,
        "powers": np.unique(np.geomspace(1, 1e6, count).round()),
        "random": np.unique(rng.integers(0, 10**7, count)).astype(float),
    }[kind]
    kept = thinned(x, most)
    assert len(kept) <= max(most, 2)
    assert kept[0] == 0
    assert kept[-1] == len(x) - 1
    assert (np.diff(kept) > 0).all()
    if len(x) <= most:
        assert len(kept) == len(x)


def test_a_thousand_checkpoints_of_a_thousand_tensors_stay_below_the_limit(tmp_path):
    path = report([big(tmp_path / "big")], tmp_path / "p.html")
    assert path.stat().st_size < LARGEST
    data = data_of(path.read_text(encoding="utf-8"))
    curves = data["charts"]["tensors"]["curves"]
    assert len(curves) == 1000
    assert sum(curve["shown"] for curve in curves) < 20
    assert min(len(array(data, curve["x"])) for curve in curves) >= 30


def test_gaps_single_steps_and_nothing_finite(trace, tmp_path):
    write_trace(trace(layers=2, steps=1), tmp_path / "one")
    values = np.full((3, 1), np.nan)
    block = Block("model", ["model"], [None], [None], [0, 1, 2], {"norm": values, "cosine": values})
    StoredResult(Records.from_blocks("nan", [block]), of_kind("trace")).write(tmp_path / "nan")
    for name in ("one", "nan"):
        text = report([tmp_path / name], tmp_path / "p.html", fit=True).read_text(encoding="utf-8")
        assert "NaN" not in Seen(text).scripts[0]


def test_the_policy_names_the_scripts_that_are_there(folder):
    import hashlib

    text = report([folder], folder / "p.html").read_text(encoding="utf-8")
    named = re.findall(r"'sha256-([^']+)'", text.split("<title>")[0])
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert named == [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert "http-equiv" in text
    for script in scripts:
        text = text.replace(script, "")
    assert not re.search(r'(src|href)="(?!#|data:)', text)


def test_tables_have_what_they_sort_by():
    table = Table(
        "t", [words("name", ["a", "b"]), numbers("x", [1234.5, float("nan")], lambda x: f"{x:,.0f}")]
    )
    text = document._table(table)
    assert 'data-value="1234.5">1,234<' in text
    assert 'data-value="nan">-<' in text


def test_claims_come_with_verdicts_published_apart(tmp_path):
    claim = {
        "id": "norm-grows",
        "where": "§3",
        "statement": "grows <b>",
        "published": "1.5",
        "verdict": "holds in part",
        "reason": "because",
        "measured": {"factor": 1.25, "other": None},
        "rule": "factor > 1",
    }
    other = claim | {"id": "two", "verdict": "does not hold"}
    erratum = {"id": "lemma", "where": "A", "stated": "p", "correct": "t", "reason": "no corpus"}
    stage = {"name": "lab", "status": "failed", "reason": "no disk"}
    facts = of_kind("reproduction", claims=[claim, other], errata=[erratum], stages=[stage])
    (tmp_path / "claims.json").write_text(json.dumps(facts))
    text = report([tmp_path], tmp_path / "p.html").read_text(encoding="utf-8")
    assert '<td class="part">holds in part</td>' in text
    assert '<td class="fails">does not hold</td>' in text
    assert '<td class="published">1.5</td>' in text
    said = " ".join(Seen(text).words)
    assert "lab (no disk)" in said
    assert "factor 1.25" in said
    assert "no corpus" in said


def test_what_is_not_there_is_said_in_a_line(tmp_path, folder, monkeypatch, capsys):
    with pytest.raises(InputError, match="no such folder"):
        report([tmp_path / "none"], tmp_path / "p.html")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no results in this folder or its subfolders"):
        report([tmp_path / "empty"], tmp_path / "p.html")
    (tmp_path / "empty" / "claims.json").write_text("[1, 2")
    with pytest.raises(InputError, match=r"claims\.json: not readable"):
        report([tmp_path / "empty"], tmp_path / "p.html")
    (tmp_path / "empty" / "claims.json").write_text("[]")
    with pytest.raises(SchemaError, match=r"claims\.json: expected an object.*`normgrowth reproduce`"):
        report([tmp_path / "empty"], tmp_path / "p.html")
    monkeypatch.setattr(document, "LIBRARY", ("not-there.js",))
    with pytest.raises(InputError, match="pip install"):
        report([folder], tmp_path / "p.html")
    assert not list(tmp_path.glob("*.html"))


def test_the_command_says_where_the_page_is(folder, capsys):
    assert main(["report", str(folder)]) == 0
    path = folder / "report.html"
    assert capsys.readouterr().out == f"{path}\n"
    seen = Seen(path.read_text(encoding="utf-8"))
    assert any("normgrowth" in word and "versions" in word for word in seen.words)
    assert main(["report", str(folder), "-o", str(folder / "b.html"), "--no-fit", "--title", "Mine"]) == 0
    assert "<title>Mine</title>" in (folder / "b.html").read_text(encoding="utf-8")
    assert "Growth laws" not in (folder / "b.html").read_text(encoding="utf-8")


def test_a_notebook_shows_the_page_and_gives_it_no_rights(folder):
    made = ng.report(folder)
    assert made.path == folder / "report.html"
    seen = Seen(made._repr_html_())
    assert seen.tags == {"iframe"}
    assert set(seen.attributes) == {"sandbox", "width", "height", "srcdoc"}


def test_the_same_records_give_the_same_page(folder):
    sections = [
        Section(
            "s",
            "t",
            items=[Chart("c", "c", "c", ChartAxis("x"), ChartAxis("y"), [ChartCurve("l", [1], [2])])],
        )
    ]
    assert page(Document("t", sections)) == page(Document("t", sections))
    first = report([folder], folder / "p.html").read_bytes()
    assert report([folder], folder / "p.html").read_bytes() == first


def test_a_spike_is_not_thinned_away():
    x, y = np.arange(10_000.0), np.zeros(10_000)
    y[6_543], y[2_000:2_500] = 7.0, np.nan
    kept = thinned(x, 500, y)
    assert 6_543 in kept
    assert len(kept) <= 500
    assert (np.diff(kept) > 0).all()


def test_folders_of_one_name_lose_nothing(trace, tmp_path):
    finding = {"step": 0, "name": "w", "kind": "identical", "why": "a copy", "label": "", "severity": "fault"}
    for parent in ("a", "b"):
        fields = {"findings": [finding], "notes": [f"of {parent}"], "problems": ["counted elsewhere"]}
        write_trace(trace(layers=2, steps=4), tmp_path / parent / "trace", fields)
    folders = [tmp_path / "a" / "trace", tmp_path / "b" / "trace"]
    report_text = report(folders, tmp_path / "p.html").read_text(encoding="utf-8")
    said = "".join(Seen(report_text).words)
    assert report_text.count("<td>a copy</td>") == 2
    assert "trace: of a" in said
    assert "b/trace: of b" in said


def test_levels_of_several_networks_are_one_chart(tmp_path):
    """Also where only the scaled network was measured, as in our own records."""
    names = ["embeddings", "layer.0", "layer.1"]
    for run, c in (("bert", 1000.0), ("gpt", None)):
        at = {} if c is None else {"constants": {"scale": c}}
        values = ({"saturation": np.array([numbers])} for numbers in ([0.1, 0.2, 0.3], [0.25]))
        blocks = [
            Block("layer", names, [None, 0, 1], [None] * 3, [0], next(values), **at),
            Block("model", ["model"], [None], [None], [0], next(values), **at),
        ]
        fields = of_kind("saturation", exact=c is None, c=[] if c is None else [c])
        StoredResult(Records.from_blocks(run, blocks), fields).write(tmp_path / run)
    text = report([tmp_path / "bert", tmp_path / "gpt"], tmp_path / "p.html").read_text(encoding="utf-8")
    data = data_of(text)
    assert [curve["label"] for curve in data["charts"]["levels"]["curves"]] == ["bert", "gpt"]
    assert data["charts"]["levels"]["x"]["ticks"] == ["embeddings", "0", "1"]
    assert "bert: saturation 0.250 on average" in "".join(Seen(text).words)


def test_a_run_that_goes_on_is_read_from_its_log(tmp_path, one_thread):
    import torch

    from normgrowth import NormTracker

    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with NormTracker(model, optimizer, every=1, out=tmp_path / "norms"):
        for _ in range(5):
            loss = sum(layer(torch.ones(1, 4)).square().sum() for layer in model["layers"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        path = ng.report(tmp_path / "norms", tmp_path / "p.html").path
    said = "".join(Seen(path.read_text(encoding="utf-8")).words)
    assert "6 measured steps" in said


def test_many_runs_stay_below_the_limit_or_are_refused(trace, tmp_path, monkeypatch):
    folders = []
    for i in range(12):
        folders.append(tmp_path / f"run{i}")
        write_trace(trace(layers=24, steps=80, width=20, seed=i), folders[-1])
    path = report(folders, tmp_path / "p.html")
    assert path.stat().st_size < LARGEST
    looks = {(c["color"] % 6, c["dash"]) for c in data_of(path.read_text())["charts"]["norm"]["curves"]}
    assert len(looks) == 12  # no two runs look alike
    monkeypatch.setattr(document, "LARGEST", 1_500_000)
    with pytest.raises(InputError, match="report fewer folders at once"):
        report(folders, tmp_path / "q.html")
    assert not (tmp_path / "q.html").exists()


def test_encoder_and_decoder_do_not_look_alike(trace, tmp_path):
    write_trace(trace(layers=3, steps=4, stacks=("encoder", "decoder")), tmp_path / "t5")
    data = data_of(report([tmp_path / "t5"], tmp_path / "p.html").read_text(encoding="utf-8"))
    looks = [(curve["shade"], curve["dash"]) for curve in data["charts"]["layers"]["curves"]]
    assert len(set(looks)) == 6


@pytest.mark.parametrize(
    "fields",
    [
        {"runs": None},
        {"runs": ["run"]},
        {"findings": None, "notes": None, "problems": None},
        {"findings": [{"step": 1}]},
        {"best_step": None},
        {"stage": "lab", "heads": ["run, heads"]},
        {"kind": "sweep"},
        {"kind": "scaling", "networks": {"run": {}}},
        {"schema": 1},
    ],
    ids=str,
)
def test_sidecars_of_another_kind_are_no_traceback(trace, tmp_path, fields):
    write_trace(trace(layers=2, steps=3), tmp_path / "x", fields)
    try:
        said = str(report([tmp_path / "x"], tmp_path / "x" / "p.html", fit=True))
    except InputError as error:
        said = str(error)
    assert str(tmp_path / "x") in said
    assert "\n" not in said


def test_ids_are_told_apart_when_everything_is_there(trace, tmp_path):
    steps = [0, 10]
    level = {name: np.array([[0.1], [0.2]]) for name in ("saturation", "saturation_others", "dev_loss")}
    run = Records.from_blocks("run", [Block("model", ["model"], [None], [None], steps, level)])
    StoredResult(Records.joined([trace(layers=2, steps=2), run]), of_kind("trace")).write(tmp_path / "run")
    sweep_records().write(tmp_path / "one")
    sweep_records().write(tmp_path / "two")
    for name in ("p", "q"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "claims.json").write_text(json.dumps(of_kind("reproduction", claims=[])))
    folders = [tmp_path / name for name in ("p", "q", "run", "one", "two")]
    seen = Seen(report(folders, tmp_path / "p.html").read_text(encoding="utf-8"))
    assert len(seen.ids) == len(set(seen.ids))
    assert {"claims", "claims-1", "saturation", "saturation-steps", "phase-0", "phase-1"} <= set(seen.ids)


def test_a_role_has_one_color_in_all_runs(tmp_path):
    """Also if the runs have different roles, in different orders."""
    for run, names in (("a", ["norm", "embedding", "feedforward"]), ("b", ["feedforward", "norm"])):
        values = np.ones((2, len(names)))
        blocks = [
            Block("role", names, [None] * len(names), names, [0, 10], {"norm": values}),
            Block("model", ["model"], [None], [None], [0, 10], {"norm": values[:, :1]}),
        ]
        StoredResult(Records.from_blocks(run, blocks), of_kind("trace")).write(tmp_path / run)
    text = report([tmp_path / "a", tmp_path / "b"], tmp_path / "p.html").read_text(encoding="utf-8")
    curves = {curve["label"]: curve for curve in data_of(text)["charts"]["roles"]["curves"]}
    for role in ("norm layers", "feedforward"):
        assert curves[f"a: {role}"]["color"] == curves[f"b: {role}"]["color"]
        assert (curves[f"a: {role}"]["dash"], curves[f"b: {role}"]["dash"]) == (0, 1)
    assert len({curve["color"] for curve in curves.values()}) == 3


def test_the_summary_has_a_row_per_result_and_few_sentences(trace, tmp_path):
    traces = [ng.Trace.from_records(trace(layers=3, steps=30, seed=seed)) for seed in (0, 1)]
    text = report(
        [*traces, ng.compare(*traces), ng.fit(traces[0], bootstrap=0)], tmp_path / "p.html", fit=True
    )
    top = text.read_text(encoding="utf-8").split("<main")[1].split("<section")[0]
    assert re.findall(r"<td>(trace|compare|fit)</td>", top) == ["trace", "trace", "fit", "compare"]
    assert "diverge at step" in top
    assert 1 <= len(re.findall("<p>", top)) <= 5
    norms = traces[0].records.series("norm")[1]
    assert f'data-value="{norms[-1] / norms[0]:.7g}"' in top


def test_the_layers_that_grew_most_and_least_are_named_above_the_chart(trace, tmp_path):
    records = trace(layers=5, steps=9)
    write_trace(records, tmp_path / "walk")
    data = data_of(report([tmp_path / "walk"], tmp_path / "p.html").read_text(encoding="utf-8"))
    notes = {c["label"]: c["note"] for c in data["charts"]["layers"]["curves"] if c["note"]}
    factor = {
        f"layer.{i}": values[-1] / values[0]
        for i in range(5)
        for values in [records.series("norm", level="layer", name=f"layer.{i}")[1]]
    }
    assert set(notes) == {max(factor, key=factor.get), min(factor, key=factor.get)}
    assert f"{max(factor.values()):.4f}" in notes[max(factor, key=factor.get)]


def test_lint_names_what_it_checked(trace, tmp_path):
    for name, fields in (("checked", {"findings": []}), ("other", {})):
        write_trace(trace(layers=2, steps=4), tmp_path / name, fields)
    text = report([tmp_path / "checked", tmp_path / "other"], tmp_path / "p.html").read_text(encoding="utf-8")
    assert "Lint: no findings in checked. Not checked: other." in text


def test_runs_that_count_the_same_parameters_share_a_sentence():
    def run(label, parameters):
        return SimpleNamespace(label=label, parameters=parameters, grows=lambda: True)

    blocks, everything = "blocks (10 of 12 tensors)", "all (12 of 12 tensors)"
    assert counted_notes([run("a", blocks), run("b", blocks)]) == [f"Parameters: {blocks}."]
    assert counted_notes([run("a", blocks), run("b", everything), run("c", blocks)]) == [
        f"Parameters of a, c: {blocks}.",
        f"Parameters of b: {everything}.",
    ]
