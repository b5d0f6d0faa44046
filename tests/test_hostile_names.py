"""Names from anybody's files, in every kind of result: terminals and notebooks show them as text."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from strict_html import StrictParser
from test_showing import HOSTILE, acting, spelled

import normgrowth
from normgrowth.checkpoints.parameters.parameter_list import Parameter, Parameters
from normgrowth.compare.result import Alignment, ComparedRow, Comparison, Diagnosis, Parting, Side, Values
from normgrowth.dynamics import dynamics
from normgrowth.fit import fit
from normgrowth.lab.run import CorpusSummary, Run
from normgrowth.lab.settings import TrainSettings
from normgrowth.limit.result import Degrees, ModuleDegree
from normgrowth.lint.result import Findings
from normgrowth.network.heads.result import Heads
from normgrowth.network.measured import ModelInfo, TextInfo
from normgrowth.network.saturation.result import Saturation
from normgrowth.network.scaling.result import Scaling
from normgrowth.paper.reproduction import Check, Judgment, Reproduction, StageOutcome
from normgrowth.records import Block, Records
from normgrowth.report.renderers import show
from normgrowth.report.sentences.parting_cause import CAUSES
from normgrowth.results import KINDS, Result
from normgrowth.stored_result import StoredResult
from normgrowth.trace.result import Trace
from normgrowth.trace.sampling.finding import Finding

KEPT = Path(__file__).parent.parent / "docs" / "records"
STEPS = list(range(0, 120, 10))


def norms(run: str, layer: str) -> Records:
    norm = np.sqrt(1.0 + np.arange(len(STEPS)))[:, None]
    names = ("step_size", "cosine", "angle", "alignment", "growth")
    between = {name: np.full_like(norm[1:], 0.5) for name in names}
    blocks = []
    for level, name, number in (("layer", layer, 0), ("model", "model", None)):
        blocks.append(Block(level, [name], [number], [None], STEPS, {"norm": norm, "dev_loss": 1 / norm}))
        blocks.append(Block(level, [name], [number], [None], STEPS[1:], between, "previous"))
    return Records.from_blocks(run, blocks)


def comparison(name: str) -> Comparison:
    """Two runs that part for every reason at once."""
    found, floor = ({"gradient": np.full((len(STEPS), 1), value)} for value in (0.5, 1e-6))
    parts = [
        norms(name, name),
        Records.from_blocks("difference", [Block("tensor", [name], [0], ["norm"], STEPS, found)]),
        Records.from_blocks("floor", [Block("model", ["model"], [None], [None], STEPS, floor)]),
    ]
    more = {"group": name, "only_a": (name,), "dtype": name, "run": "b"}
    return Comparison(
        records=Records.joined(parts),
        a=Side(name, name, 1, name),
        b=Side(name, name, 1, ""),
        matched=True,
        rows=(ComparedRow("layer", name, Values(1.0), Values(2.0)),),
        alignment=Alignment("tensor", 1, 1, 1, (name,), ("gradient",), {name: name}, (name,), (name,)),
        partings=(Parting("gradient", 1, name, 1.0, 2.0, 0.5, 1e-6, 1),),
        diagnoses=tuple(Diagnosis(cause, "gradient", 1, (name,), 1, 0.5, 1e-6, **more) for cause in CAUSES),
    )


def renamed(records: Records, run: str) -> Records:
    """All rows of one run with this name."""
    table = records.table
    column = pa.array([run] * len(table)).dictionary_encode()
    return Records(table.set_column(table.column_names.index("run"), "run", column))


def trace(name: str) -> Trace:
    found = Finding(10, name, "stale", name, name)
    return Trace(records=norms(name, name), source=name, run=name, steps=tuple(STEPS), findings=(found,))


def fits(name: str) -> normgrowth.Fits:
    found = fit(STEPS, np.sqrt(1.0 + np.arange(len(STEPS))), bootstrap=0, laws=["sqrt", "linear"])
    one = replace(found.only, name=name, notes=(name,))
    return replace(found, source=name, parameters=name, series={name: one})


def several_fits(name: str) -> normgrowth.Fits:
    found = fits(name)
    return replace(found, series={**found.series, "other": replace(found.only, name="other")})


def degrees(name: str) -> Degrees:
    block = Block("module", [name], [None], [None], [0], {"degree": np.ones((1, 1))})
    modules = (ModuleDegree(name, name, None, by_run=(None,)),)
    return Degrees(records=Records.from_blocks(name, [block]), source=name, model=name, modules=modules)


def heads(name: str) -> Heads:
    values = {"entropy_share": np.full((1, 1), 0.5), "attended": np.ones((1, 1))}
    blocks = [
        Block("head", [f"{name}.head.0"], [0], [None], [0], values),
        Block("layer", [name], [0], [None], [0], values),
        Block("model", ["model"], [None], [None], [0], values),
    ]
    known = {"model": {"name": name, "text": {"source": name}}, "kinds": {f"{name}.head.0": "sink"}}
    fields = {"source": name, "models": {name: known}}
    return Heads.from_stored(StoredResult(Records.from_blocks(name, blocks), fields))


def saturation(name: str) -> Saturation:
    found = StoredResult.read(KEPT / "minilm")
    (known,) = found.fields["models"].values()
    models = {name: {**known, "name": name, "text": {**known["text"], "source": name}}}
    fields = {**found.fields, "source": name, "models": models}
    return Saturation.from_stored(StoredResult(renamed(found.records, name), fields))


def saturation_series(name: str) -> Saturation:
    found = StoredResult.read(KEPT / "training")
    return Saturation.from_stored(StoredResult(renamed(found.records, name), found.fields))


def scaling(name: str) -> Scaling:
    found = normgrowth.load(KEPT / "figure4")
    assert isinstance(found, Scaling)
    one = found.networks[0]
    rows = renamed(found.rows_of(one), name)
    return replace(found, records=rows, networks=(replace(one, run=name),), source=name)


def sweep(name: str) -> normgrowth.Sweep:
    found = normgrowth.load(KEPT / "decay" / "adamw-default")
    assert isinstance(found, normgrowth.Sweep)
    return replace(found, records=renamed(found.records, name), corpus=replace(found.corpus, name=name))


def reproduction(name: str) -> Reproduction:
    claim = Judgment(
        id=name, where=name, statement=name, published=name, rule=name, verdict="holds", reason=name
    )
    check = Check(id=name, where=name, stated=name, correct=name, reason=name)
    stages = (StageOutcome(name, name, "failed", None, name),)
    return Reproduction.of(claims=(claim,), errata=(check,), departures=(check,), stages=stages)


def behavior(name: str) -> normgrowth.Behavior:
    shares = {"accuracy": np.array([[0.5]]), "agreement": np.array([[0.5]])}
    blocks = [Block("model", [one], [None], [None], [0], shares) for one in ("soft", "saturated")]
    known = {name: ModelInfo(name, name, text=TextInfo(name))}
    return normgrowth.Behavior(
        records=Records.from_blocks(name, blocks), source=name, models=known, language=name
    )


# A result of every kind with this name wherever a name can be, and how often it is shown at least.
RESULTS = {
    "parameters": (
        lambda name: Parameters(
            source=name,
            parameters=(Parameter(name, (1,), name, name, 0, name, "parameter", False, name),),
        ),
        2,
    ),
    "trace": (trace, 4),
    "findings": (
        lambda name: Findings(
            source=name,
            findings=(Finding(None, name, "new", name, name), Finding(3, "", "partial", "cut", name)),
        ),
        4,
    ),
    "mixed findings": (
        lambda name: Findings(source=name, findings=(Finding(None, name, "mixed", name, name),)),
        3,
    ),
    "comparison": (comparison, 20),
    "fits": (fits, 4),
    "several fits": (several_fits, 4),
    "dynamics": (lambda name: dynamics(trace(name), "0.01", level="layer", name=name), 2),
    "degrees": (degrees, 4),
    "saturation": (saturation, 2),
    "saturation series": (saturation_series, 1),
    "heads": (heads, 1),
    "scaling": (scaling, 1),
    "behavior": (behavior, 2),
    "run": (
        lambda name: Run(
            records=norms(name, name), settings=TrainSettings(corpus=name), corpus=CorpusSummary(name)
        ),
        2,
    ),
    "sweep": (sweep, 2),
    "reproduction": (reproduction, 6),
}
MADE: dict[tuple[str, str], Result] = {}


def made(kind: str, name: str) -> Result:
    """With this name in a note and a problem, too."""
    if (kind, name) not in MADE:
        MADE[kind, name] = replace(RESULTS[kind][0](name), notes=(name,), problems=(name,))
    return MADE[kind, name]


class Shown(StrictParser):
    """The text of a page that has nothing but preformatted, colored text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.open = "", []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in ("pre", "span")
        assert [name for name, _ in attrs] == ["style"]
        assert not {"url", "expression", "javascript"} & set(str(attrs[0][1]).replace("(", " ").split())
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        assert self.open, data
        self.text += data


def test_every_kind_of_result_is_tried():
    assert {RESULTS[kind][0]("x").kind for kind in RESULTS} == set(KINDS)


@pytest.mark.parametrize("kind", RESULTS)
@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_printed_as_text(kind, name):
    result, least = made(kind, name), RESULTS[kind][1]
    wide = io.StringIO()
    show(result, Console(file=wide, width=3000, force_jupyter=False))
    assert wide.getvalue().count(spelled(name)) >= least + 2, wide.getvalue()
    for text in (wide.getvalue(), str(result)):
        assert not acting(text.replace("\n", ""))
    assert not acting(repr(result))


@pytest.mark.parametrize("kind", RESULTS)
@pytest.mark.parametrize("name", HOSTILE)
def test_notebooks_show_the_same_text_and_nothing_else(kind, name):
    result = made(kind, name)
    html = result._repr_html_()
    assert not acting(html.replace("\n", ""))
    shown = [line.rstrip() for line in Shown(html).text.rstrip("\n").splitlines()]
    assert shown == [line.rstrip() for line in str(result).splitlines()]
