"""Corners of sweeps: settings that change the corpus or the way of training, folders half made, cells that are lost."""

import errno
import json
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from normgrowth import InputError, workspace
from normgrowth import sweep as run_sweep
from normgrowth.engine import Threads, WorkerCrashed
from normgrowth.lab.build import corpus_of
from normgrowth.lab.cells.axis import Axis
from normgrowth.lab.cells.cell import Outcome, train_alone
from normgrowth.lab.cells.edges import edges
from normgrowth.lab.settings import TrainSettings
from normgrowth.lab.sweep_run import one_thread
from normgrowth.report.sweep_grid import SweepGrid


def sweep(*arguments, **options):
    """The records of a sweep."""
    return run_sweep(*arguments, **options).records


TINY = TrainSettings(
    corpus="dyck2", longest=6, layers=1, width=8, heads=2, feedforward=8, steps=6, batch=4, dev_sentences=10
)
X, Y = Axis("lr", (0.01, 0.1)), Axis("weight_decay", (0.0, 0.1))


class Telling(Threads):
    """Remembers how many cells each task has."""

    def __init__(self):
        super().__init__(1)
        self.sizes = []

    def submit(self, function, task, limit):
        self.sizes.append(len(task))
        return super().submit(function, task, limit)


class Deadly(Threads):
    """Whatever runs a task dies of it."""

    def result(self, handle):
        raise WorkerCrashed("killed")


@pytest.fixture(scope="module")
def corpus():
    return corpus_of(TINY, None)


@pytest.fixture
def engine():
    with closing(Telling()) as threads:
        yield threads


def values(records, quantity, level="cell"):
    return records.where(level=level, quantity=quantity).table["value"].to_numpy()


@pytest.mark.parametrize(
    ("setting", "values_"), [("seed", (0, 1)), ("longest", (4, 6)), ("positions", (7, 9))]
)
def test_a_cell_is_the_run_of_its_own_corpus(tmp_path, engine, setting, values_):
    records = sweep(
        TINY, tmp_path, x=Axis(setting, values_), y=Axis("lr", (0.01,)), engine=engine, stack_size=1
    )
    for i, value in enumerate(values_):
        own = replace(TINY, lr=0.01, **{setting: value})
        with one_thread():
            alone = train_alone(own, corpus_of(own, None))
        for quantity in ("norm_start", "growth", "dev_loss", "numel"):
            assert values(records, quantity)[i] == getattr(alone, quantity), quantity


@pytest.mark.parametrize("together", [None, 4])
@pytest.mark.parametrize(
    ("x", "sizes"),
    [
        (Axis("optimizer", ("adamw", "adafactor")), [2, 1, 1]),
        (Axis("leaking", (False, True)), [2, 1, 1]),
        (Axis("optimizer", ("adafactor",)), [1, 1]),
    ],
)
def test_cells_that_cannot_be_stacked_train_alone(tmp_path, corpus, engine, x, sizes, together):
    records = sweep(TINY, tmp_path, x=x, y=X, corpus=corpus, engine=engine, stack_size=together)
    assert engine.sizes == sizes
    assert np.isfinite(values(records, "dev_loss")).all()


def test_whether_a_stack_pays_is_asked_for_each_shape(tmp_path, corpus, engine):
    x = Axis("width", (8, 512))
    result = run_sweep(replace(TINY, steps=1), tmp_path, x=x, y=X, corpus=corpus, engine=engine)
    assert engine.sizes == [2, 1, 1]
    assert result.stack_size == 2


def test_a_list_and_a_scale_share_their_cells(tmp_path, corpus, engine):
    sweep(
        TINY, tmp_path, x=Axis("lr", (1, 0.1)), y=Axis("weight_decay", (1, 0)), corpus=corpus, engine=engine
    )
    assert sum(engine.sizes) == 4
    again = {"x": Axis.spaced("lr", 0.1, 1, 2), "y": Axis("weight_decay", (0.0, 1.0))}
    sweep(TINY, tmp_path, **again, corpus=corpus, engine=engine)
    assert sum(engine.sizes) == 4


def test_steps_as_a_setting_and_as_an_outcome(tmp_path, corpus, engine):
    settings = replace(TINY, optimizer="sgd")
    x, y = Axis("steps", (2, 4)), Axis("lr", (0.01, 1e30))
    records = sweep(settings, tmp_path, x=x, y=y, corpus=corpus, engine=engine)
    assert values(records, "steps").tolist() == [2, 2, 4, 4]
    done, diverged = values(records, "steps_done"), values(records, "diverged")
    assert done[diverged == 0].tolist() == [2, 4]
    assert (done[diverged == 1] < 2).all()


def test_nothing_but_lost_cells_is_still_a_result(tmp_path, corpus, capsys):
    kinds = Axis("kind", ("post_norm", "usual_pre_norm"))
    with closing(Deadly(1)) as engine:
        result = run_sweep(TINY, tmp_path, x=X, y=kinds, corpus=corpus, engine=engine, stack_size=1)
    assert result.cells == 0
    assert len(result.problems) == 4
    print(result)
    assert "0 of 4 cells were trained" in capsys.readouterr().out


class Losing(Threads):
    """Workers die of the cells with these settings."""

    def __init__(self, *lost):
        super().__init__(1)
        self.lost = lost

    def submit(self, function, task, limit):
        handle = super().submit(function, task, limit)
        handle.dies = any((cell.lr, cell.weight_decay) in self.lost for cell in task)
        return handle

    def result(self, handle):
        if handle.dies:
            raise WorkerCrashed("killed")
        return super().result(handle)


@pytest.mark.parametrize("refine", [False, True])
def test_lost_cells_are_unknown(tmp_path, corpus, refine, capsys):
    """A lost cell among falling ones does not lift the edge; one beyond the last known makes it unknown."""
    x, y = Axis("lr", (1e-3, 1e-2)), Axis("weight_decay", (1e-3, 1.0, 30.0, 60.0, 90.0))
    with closing(Threads(1)) as engine:
        whole = sweep(TINY, tmp_path / "whole", x=x, y=y, corpus=corpus, engine=engine, stack_size=1)
    edges = values(whole, "edge", "column")
    assert np.isfinite(edges).all()
    assert (edges < 60).all()
    lost = [(1e-2, 90.0), (1e-3, 1e-3)]
    with closing(Losing(*lost)) as engine:
        found_result = run_sweep(
            TINY, tmp_path / "lost", x=x, y=y, corpus=corpus, engine=engine, stack_size=1, refine=refine
        )
        found = found_result.records
    assert values(found, "edge", "column")[1] == edges[1]
    assert values(found, "once", "column")[1] == 1
    if values(whole, "edge_below", "column")[0] == 1e-3:
        assert np.isnan(values(found, "edge", "column")[0])
    assert (0, 0) in found_result.lost
    print(found_result)
    said = " ".join(capsys.readouterr().out.split())
    assert f"lost (killed or out of memory): {len(found_result.lost)}" in said
    assert "interpolated between trained cells" in said  # so that one at the edge moves it between these
    with closing(Threads(1)) as engine:  # they are trained when the command is run again
        again_result = run_sweep(
            TINY, tmp_path / "lost", x=x, y=y, corpus=corpus, engine=engine, stack_size=1
        )
    assert not again_result.lost
    np.testing.assert_array_equal(values(again_result.records, "edge", "column"), edges)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan")])
def test_limits_that_are_none(tmp_path, corpus, engine, limit):
    with pytest.raises(InputError, match="finite number of seconds > 0"):
        sweep(TINY, tmp_path / "x", x=X, y=Y, time_limit=limit, corpus=corpus, engine=engine)
    assert not (tmp_path / "x").exists()


def test_no_space_in_the_first_moment_spoils_no_folder(tmp_path, corpus, engine, monkeypatch):
    class Full(workspace.replacing):
        def __enter__(self):
            raise OSError(errno.ENOSPC, "No space left on device", str(self.target))

    with monkeypatch.context() as full:
        full.setattr(workspace, "replacing", Full)
        with pytest.raises(InputError, match="No space left on device"):
            sweep(TINY, tmp_path / "x", x=X, y=Y, corpus=corpus, engine=engine)
    (tmp_path / "x" / ".request.json.123.part").write_text("{")  # and what a kill leaves
    assert run_sweep(TINY, tmp_path / "x", x=X, y=Y, corpus=corpus, engine=engine).cells == 4
    (tmp_path / "other" / "cells").mkdir(parents=True)
    with pytest.raises(InputError, match="contains cells but no sweep"):
        sweep(TINY, tmp_path / "other", x=X, y=Y, corpus=corpus, engine=engine)


def test_progress_ends_where_the_search_does(tmp_path, corpus, engine):
    told = []
    y = Axis.spaced("weight_decay", 1e-3, 5.0, 8)
    result = run_sweep(
        TINY,
        tmp_path,
        x=X,
        y=y,
        refine=True,
        corpus=corpus,
        engine=engine,
        progress=lambda *what: told.append(what),
    )
    done, total, _ = told[-1]
    assert done == total == result.cells < 16


def test_a_cell_without_a_step_neither_grows_nor_falls(tmp_path, corpus, engine):
    result = run_sweep(TINY, tmp_path, x=X, y=Y, time_limit=1e-9, corpus=corpus, engine=engine)
    records = result.records
    assert (values(records, "factor") == 1).all()
    assert (values(records, "timed_out") == 1).all()
    assert json.loads((tmp_path / "records.json").read_text())["time_limit"] == 1e-9
    assert SweepGrid(result).log_factor.tolist() == [[0, 0], [0, 0]]


def test_a_rate_that_is_not_constant_has_no_prediction():
    plain = dict.fromkeys(Outcome.__dataclass_fields__, 0.0)
    cells = {
        (0, j): Outcome(**{**plain, "norm_start": 10.0, "growth": growth, "numel": 1000})
        for j, growth in enumerate((1.0, -1.0))
    }
    grows, x = {(0, 0): True, (0, 1): False}, Axis("lr", (0.01,))
    predicted = [
        edges(replace(TINY, **own), x, Y, cells, grows)[0]["edge_predicted"]
        for own in ({}, {"warmup": 3}, {"schedule": "cosine"})
    ]
    assert predicted[0] > 0
    assert np.isnan(predicted[1:]).all()
