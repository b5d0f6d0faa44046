"""A folder of each kind that normgrowth writes, made by the real commands in seconds, and what reads it."""

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import torch
from synthetic_series import walk, write_series
from tracking.tiny_training import backward, tiny

from normgrowth import NormTracker
from normgrowth.cli.main import main
from normgrowth.engine import Threads
from normgrowth.lab.cells.axis import Axis
from normgrowth.lab.settings import TrainSettings
from normgrowth.serialization.checksums import CHECKSUM, SEALED
from normgrowth.stored_result import PAIRED
from normgrowth.sweep import sweep

SHAPE = ["--layers", "1", "--width", "8", "--heads", "2", "--feedforward", "8"]
TRAIN = [
    "dyck2",
    "--longest",
    "6",
    *SHAPE,
    "--steps",
    "12",
    "--batch",
    "4",
    "--dev-sentences",
    "10",
    "--track",
    "2",
]
RECORDS = ["records.parquet", "records.json"]
FIT, REPORT = ["fit", "{}", "--bootstrap", "0"], ["report", "{}"]
SHOW = [
    FIT,
    REPORT,
    ["compare", "{}", "{}"],
    ["plot", "{}", "--formats", "png"],
    ["dynamics", "{}", "--schedule", "1e-3", "--weight-decay", "0.1"],
    ["watch", "{}", "--once"],
]


@dataclass(frozen=True)
class Kind:
    """How a folder is made, and which commands read which of its files, "{}" being the folder."""

    make: Callable[[Path], None]
    readers: list[tuple[list[str], list[list[str]]]] = field(default_factory=lambda: [(RECORDS, SHOW)])


def run(*argv: object) -> tuple[int, str, str]:
    """The command line, in this process: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in argv])
    return code, out.getvalue(), err.getvalue()


def done(*argv: object) -> None:
    code, _, said = run(*argv)
    assert code == 0, said


def unsealed(folder: Path) -> None:
    """Take the checksums out of all files, so that a change meets what lies behind them."""
    for path in folder.rglob("*.parquet"):
        table = pq.read_table(path)
        rest = {key: value for key, value in (table.schema.metadata or {}).items() if key != SEALED}
        pq.write_table(table.replace_schema_metadata(rest or None), path)
    for path in folder.rglob("*.json"):
        content = json.loads(path.read_text())
        rest = {key: value for key, value in content.items() if key not in (CHECKSUM, PAIRED)}
        path.write_text(json.dumps(rest))


def make_trace(folder: Path) -> None:
    states = walk(8)
    states[5] = states[4]  # for lint to find
    done("trace", write_series(folder.with_name("series"), states), "-o", folder)


def make_tracker(folder: Path) -> None:
    """The log of a run that was not closed, and records of its first steps."""
    model = tiny(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tracker = NormTracker(model, optimizer, every=1, out=folder, run="run")
    for step in range(1, 9):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        if step == 4:
            tracker._log.note(step, "a remark")
            records = tracker.trace.records
    tracker.close()
    records.write(folder)


def make_train(folder: Path) -> None:
    done("train", *TRAIN, "-o", folder)


def make_sweep(folder: Path) -> None:
    settings = TrainSettings(
        corpus="dyck2",
        longest=6,
        layers=1,
        width=8,
        heads=2,
        feedforward=8,
        steps=12,
        batch=4,
        dev_sentences=10,
    )
    engine = Threads(1)
    x, y = Axis("lr", (1e-3, 1e-2, 0.1)), Axis("weight_decay", (1e-3, 0.1, 5.0))
    sweep(settings, folder, x=x, y=y, engine=engine)
    engine.close()


def of_folder(name: str, first: Callable[[Path], None], *command: str) -> Callable[[Path], None]:
    """A command on a folder that was made before."""

    def make(folder: Path) -> None:
        source = folder.with_name(name)
        if not source.exists():
            first(source)
        done(*(word.format(source) for word in command), "-o", folder)

    return make


def of_trained(*command: str) -> Callable[[Path], None]:
    return of_folder("trained", make_train, *command)


def of_traced(*command: str) -> Callable[[Path], None]:
    return of_folder("traced", make_trace, *command)


SHOWN = [(RECORDS, [REPORT])]
SERIES = ("saturation", "{}/checkpoints", "--config", "{}/best", "--sentences", "4")
KINDS = {
    "trace": Kind(make_trace),
    "tracker": Kind(make_tracker, [(["steps/*.arrows", "notes.jsonl"], [*SHOW, REPORT])]),
    "train": Kind(
        make_train,
        [
            ([*RECORDS, "tracker/records.parquet", "tracker/records.json"], [REPORT, *SHOW[:2]]),
            ([*RECORDS, "request.json", "state.pt", "tracker/records.*"], [["train", *TRAIN, "-o", "{}"]]),
        ],
    ),
    "sweep": Kind(make_sweep, [(RECORDS, [REPORT, REPORT, FIT])]),
    "saturation": Kind(
        of_trained("saturation", "{}/best", "--sentences", "4", "--random-init", "1"),
        [(RECORDS, [REPORT, *SHOW])],
    ),
    "profile": Kind(of_trained(*SERIES)),
    "heads": Kind(
        of_trained("heads", "{}/best", "--sentences", "4", "--show", "( )"),
        [(RECORDS, [REPORT, REPORT, FIT])],
    ),
    "behavior": Kind(of_trained("behavior", "{}/best", "--sentences", "4", "--bootstrap", "9"), SHOWN),
    "degrees": Kind(of_trained("degrees", "{}/best"), SHOWN),
    "findings": Kind(of_traced("lint", "{}/../series"), SHOWN),
    "parameters": Kind(of_traced("parameters", "{}/../series"), SHOWN),
    "fits": Kind(of_traced("fit", "{}", "--bootstrap", "0"), SHOWN),
    "dynamics": Kind(of_traced("dynamics", "{}", "--schedule", "1e-3"), SHOWN),
    "comparison": Kind(of_traced("compare", "{}", "{}"), SHOWN),
    "reproduction": Kind(
        lambda folder: done("reproduce", "--only", "norm-sqrt,fig1", "-o", folder),
        [(["claims.json"], [REPORT])],
    ),
    "scaling": Kind(
        lambda folder: done(
            *("scaling", "paper", "--layers", 1, "--width", 16, "--seeds", 1, "--scales", 4), "-o", folder
        ),
        [(RECORDS, [REPORT, REPORT, FIT])],
    ),
}
