"""Sweeps: real tiny trainings, kept as they come, the same on every engine; and where growth ends."""

import json
import math
from contextlib import closing
from dataclasses import asdict, replace

import numpy as np
import pytest

from normgrowth import InputError, Records, load
from normgrowth import sweep as run_sweep
from normgrowth.dynamics.equilibrium import stationary_decay
from normgrowth.engine import Threads
from normgrowth.engine.processes import Processes
from normgrowth.lab.build import corpus_of
from normgrowth.lab.cells.axis import Axis
from normgrowth.lab.cells.cell import Outcome, train_alone
from normgrowth.lab.cells.edges import edges
from normgrowth.lab.settings import TrainSettings
from normgrowth.lab.sweep_result import Sweep
from normgrowth.lab.sweep_run import one_thread


def sweep(*arguments, **options):
    """The records of a sweep."""
    return run_sweep(*arguments, **options).records


TINY = TrainSettings(
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
X, Y = Axis("lr", (1e-3, 1e-2, 0.1)), Axis("weight_decay", (1e-3, 0.1, 5.0))


@pytest.fixture(scope="module")
def corpus():
    return corpus_of(TINY, None)


@pytest.fixture
def threads():
    with closing(Threads(1)) as engine:
        yield engine


class Counting:
    """An engine that remembers the tasks it is given, and can stop after some."""

    def __init__(self, engine, at_most=10**9):
        self.engine, self.workers, self.at_most, self.tasks = engine, engine.workers, at_most, []

    def submit(self, function, task, limit):
        if len(self.tasks) >= self.at_most:
            raise KeyboardInterrupt
        self.tasks.append(task)
        return self.engine.submit(function, task, limit)

    @property
    def cells(self):
        return sum(len(task) for task in self.tasks)

    def __getattr__(self, name):
        return getattr(self.engine, name)


def same(one, other):
    """Records equal to the bit; NaN equals itself."""
    bits = [records.table["value"].to_numpy().view(np.int64) for records in (one, other)]
    assert np.array_equal(*bits)
    assert one.table.drop_columns("value").equals(other.table.drop_columns("value"))


def value(records, name, quantity):
    [row] = records.where(level="cell", name=name, quantity=quantity).to_rows()
    return row["value"]


def test_a_cell_is_the_run_that_its_settings_name(tmp_path, corpus, threads):
    records = sweep(TINY, tmp_path, x=X, y=Y, corpus=corpus, engine=threads, stack_size=1)
    assert len(records.where(level="cell").distinct("name")) == 9
    factors = records.where(level="cell", quantity="factor").to_rows()
    assert [(row["cell"], row["seed"]) for row in factors] == [(i, TINY.seed) for i in range(9)]
    for lr, decay in ((1e-3, 0.1), (0.1, 5.0)):
        with one_thread():
            alone = train_alone(replace(TINY, lr=lr, weight_decay=decay), corpus)
        name = f"lr={lr:g}, weight_decay={decay:g}"
        for quantity in (
            "norm_start",
            "norm_end",
            "growth",
            "growth_decay",
            "dev_loss",
            "gradient_norm",
            "numel",
        ):
            assert value(records, name, quantity) == getattr(alone, quantity), quantity
        assert value(records, name, "factor") == alone.norm_end / alone.norm_start
    same(Records.read(tmp_path), records)


def test_processes_and_stacks_give_the_same_up_to_rounding(tmp_path, corpus, threads):
    one = sweep(TINY, tmp_path / "one", x=X, y=Y, corpus=corpus, engine=threads, stack_size=1)
    with closing(Processes(2)) as processes:
        same = sweep(TINY, tmp_path / "same", x=X, y=Y, corpus=corpus, engine=processes, stack_size=1)
    stacked = sweep(TINY, tmp_path / "stack", x=X, y=Y, corpus=corpus, engine=threads, stack_size=4)
    for quantity in ("norm_end", "growth", "dev_loss"):
        values = [
            r.where(level="cell", quantity=quantity).table["value"].to_numpy() for r in (one, same, stacked)
        ]
        assert np.array_equal(values[0], values[1])
        # Adam's first steps are signs, and the sign of a gradient near 0 is rounding's: see test_together for float64.
        np.testing.assert_allclose(values[2], values[0], rtol=0.05, atol=0.05)


def test_what_is_known_is_not_trained_again(tmp_path, corpus, threads):
    with pytest.raises(KeyboardInterrupt):
        sweep(TINY, tmp_path, x=X, y=Y, corpus=corpus, engine=Counting(threads, at_most=4), stack_size=1)
    kept = len(list((tmp_path / "cells").glob("*.json")))
    assert 0 < kept <= 4
    rest = Counting(threads)
    first = sweep(TINY, tmp_path, x=X, y=Y, corpus=corpus, engine=rest, stack_size=1)
    assert rest.cells == 9 - kept
    again = Counting(threads)
    second = sweep(TINY, tmp_path, x=X, y=Y, corpus=corpus, engine=again)
    assert again.cells == 0
    same(second, first)


def test_a_finer_grid_takes_over_the_coarse_ones_cells(tmp_path, corpus, threads):
    coarse = Axis.spaced("lr", 1e-4, 1e-1, 4), Axis.spaced("weight_decay", 1e-3, 1.0, 2)
    fine = Axis.spaced("lr", 1e-4, 1e-1, 7), Axis.spaced("weight_decay", 1e-3, 1.0, 3)
    assert set(coarse[0].values) < set(fine[0].values)
    sweep(TINY, tmp_path, x=coarse[0], y=coarse[1], corpus=corpus, engine=threads)
    counting = Counting(threads)
    result = run_sweep(TINY, tmp_path, x=fine[0], y=fine[1], corpus=corpus, engine=counting)
    assert counting.cells == 7 * 3 - 4 * 2
    assert result.cells == 21


def test_a_damaged_cell_is_trained_again(tmp_path, corpus, threads):
    sweep(TINY, tmp_path, x=X, y=Y, corpus=corpus, engine=threads)
    before = Records.read(tmp_path).where(quantity="norm").to_rows()
    for i, path in enumerate(sorted((tmp_path / "cells").glob("*.json"))[:5]):
        words = path.read_text()
        assert '"steps": 12,' in words
        other_type = words.replace('"steps": 12,', '"steps": "twelve",')
        other_value = words.replace('"steps": 12,', '"steps": 13,')  # as one flipped bit has it
        path.write_text(["", "[]", '{"outcome": {"steps": 1}}', other_type, other_value][i])
    counting = Counting(threads)
    sweep(TINY, tmp_path, x=X, y=Y, corpus=corpus, engine=counting)
    assert counting.cells == 5
    assert Records.read(tmp_path).where(quantity="norm").to_rows() == before


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_refining_finds_the_edge_of_the_full_grid(tmp_path, corpus, threads, optimizer):
    settings = replace(TINY, optimizer=optimizer, clip=1.0 if optimizer == "sgd" else None)
    x, y = Axis.spaced("lr", 1e-3, 0.1, 6), Axis.spaced("weight_decay", 1e-3, 5.0, 16)  # ηλ stays below 1
    counting = Counting(threads)
    few = sweep(settings, tmp_path / "few", x=x, y=y, refine=True, corpus=corpus, engine=counting)
    full = sweep(settings, tmp_path / "full", x=x, y=y, corpus=corpus, engine=threads)
    assert counting.cells < 96 / 1.5  # six columns only: three anchors; wide grids save more
    for quantity in ("edge_below", "edge_above"):
        one, other = (
            r.where(level="column", quantity=quantity).table["value"].to_numpy() for r in (few, full)
        )
        assert np.array_equal(one, other)
    once = full.where(level="column", quantity="once").table["value"].to_numpy()
    assert (once == 1).all()


def test_divergence_is_a_result(tmp_path, corpus, threads):
    settings = replace(TINY, optimizer="sgd")
    x, y = Axis("lr", (0.01, 1e30)), Axis("weight_decay", (0.0, 1.0))
    result = run_sweep(settings, tmp_path, x=x, y=y, corpus=corpus, engine=threads)
    records = result.records
    diverged = [value(records, f"lr={lr:g}, weight_decay=0", "diverged") for lr in x.values]
    assert diverged == [0.0, 1.0]
    assert not result.problems
    edge = records.where(level="column", quantity="edge").table["value"].to_numpy()
    assert edge[1] == math.inf  # weights that are no numbers any more did not shrink


def test_a_time_limit_ends_a_cell_where_it_is(tmp_path, corpus, threads):
    long = replace(TINY, steps=None, epochs=1000)
    one = {"x": Axis("lr", (1e-3,)), "y": Axis("weight_decay", (0.0, 0.1))}
    records = sweep(long, tmp_path, **one, time_limit=0.3, corpus=corpus, engine=threads, stack_size=1)
    name = "lr=0.001, weight_decay=0"
    assert value(records, name, "timed_out") == 1
    assert 0 < value(records, name, "steps") < 1e5
    shorter, longer = Counting(threads), Counting(threads)
    sweep(long, tmp_path, **one, time_limit=0.2, corpus=corpus, engine=shorter, stack_size=1)
    assert shorter.cells == 0
    sweep(long, tmp_path, **one, time_limit=0.4, corpus=corpus, engine=longer, stack_size=1)
    assert longer.cells == 2


def test_settings_that_are_no_numbers(tmp_path, corpus, threads):
    kinds = Axis("kind", ("post_norm", "usual_pre_norm"))
    records = sweep(TINY, tmp_path, x=kinds, y=Axis("lr", (1e-3, 1e-2)), corpus=corpus, engine=threads)
    assert records.where(level="cell").distinct("name")[0] == "kind=post_norm, lr=0.001"
    assert value(records, "kind=usual_pre_norm, lr=0.01", "kind") == 1


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        (lambda: Axis.spaced("lr", 0.0, 1.0, 3), "a logarithmic grid needs 0 < low < high"),
        (lambda: Axis.spaced("lr", -1.0, 1.0, 3), "0 < low < high, got -1 and 1"),
        (lambda: Axis.spaced("lr", 1.0, 0.1, 3), "0 < low < high, got 1 and 0.1"),
        (lambda: Axis.spaced("lr", 0.1, 1.0, 1), "needs 2 to 100,000 values, got 1"),
        (lambda: Axis("lr", ()), "at least one value"),
        (lambda: Axis("lr", (0.1, 0.1)), "lr has duplicate values"),
        (lambda: Axis("speed", (0.1, 0.2)), "unknown setting 'speed'"),
        (lambda: Axis("corpus", ("penn",)), "unknown setting 'corpus'"),
    ],
)
def test_grids_that_are_none(axis, said):
    with pytest.raises(InputError, match=said):
        axis()


def test_bad_sweeps_are_refused_before_anything_is_trained(tmp_path, corpus, threads):
    engine = Counting(threads)
    with pytest.raises(InputError, match="got lr twice"):
        sweep(TINY, tmp_path / "a", x=X, y=Axis("lr", (0.1,)), corpus=corpus, engine=engine)
    with pytest.raises(InputError, match=r"lr=0.001, weight_decay=-1: weight_decay must be >= 0"):
        sweep(TINY, tmp_path / "a", x=X, y=Axis("weight_decay", (-1.0, 1.0)), corpus=corpus, engine=engine)
    with pytest.raises(InputError, match="heads"):
        sweep(TINY, tmp_path / "a", x=X, y=Axis("width", (7, 8)), corpus=corpus, engine=engine)
    with pytest.raises(InputError, match="finite number of seconds > 0"):
        sweep(TINY, tmp_path / "a", x=X, y=Y, time_limit=0, corpus=corpus, engine=engine)
    kinds = Axis("kind", ("post_norm", "usual_pre_norm"))
    with pytest.raises(InputError, match="refine"):
        sweep(TINY, tmp_path / "a", x=X, y=kinds, refine=True, corpus=corpus, engine=engine)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("important")
    with pytest.raises(InputError, match=r"contains thesis\.tex but no sweep"):
        sweep(TINY, tmp_path / "other", x=X, y=Y, corpus=corpus, engine=engine)
    assert engine.cells == 0
    assert not (tmp_path / "a").exists()


def outcome(growth, alignment, steps, decay, **more):
    plain = dict.fromkeys(Outcome.__dataclass_fields__, 0.0)
    norms = {"norm_start": 10.0, "norm_end": math.sqrt(100 + growth), "numel": 1000, "diverged": False}
    terms = {"growth_alignment": alignment, "growth_steps": steps, "growth_decay": decay}
    return Outcome(**{**plain, **norms, "growth": growth, **terms, "gradient_norm": 0.5, **more})


def test_edges_lie_where_growth_is_zero_and_terms_cancel():
    x, y = Axis("lr", (1e-3,)), Axis("weight_decay", (0.01, 0.1))
    outcomes = {(0, 0): outcome(3.0, 3.5, 0.5, -1.0), (0, 1): outcome(-1.0, 7.5, 1.5, -10.0)}
    grows = {(0, 0): True, (0, 1): False}
    [row] = edges(TINY, x, y, outcomes, grows)
    assert row["edge"] == pytest.approx(0.01 * 10**0.75)  # 3 of 4 parts of the way, on a logarithmic scale
    assert row["edge_alignment"] + row["edge_steps"] == pytest.approx(1.0)
    assert row["edge_predicted"] == pytest.approx(stationary_decay(10.0, lr=1e-3, numel=1000))
    assert row["edge_predicted"] == pytest.approx(1e-3 * 1000 / (2 * 100), rel=0.01)
    sgd = replace(TINY, optimizer="sgd")
    [row] = edges(sgd, x, y, outcomes, grows)
    assert row["edge_predicted"] == pytest.approx(1e-3 * 0.25 / (2 * 100), rel=0.01)


def test_edges_beyond_the_grid():
    x, y = Axis("lr", (1e-3, 1e-2)), Axis("weight_decay", (0.01, 0.1))
    outcomes = {(i, j): outcome(1.0 - 2 * i, 1, 1, -1) for i in range(2) for j in range(2)}
    rows = edges(TINY, x, y, outcomes, {cell: o.growth > 0 for cell, o in outcomes.items()})
    assert [row["edge"] for row in rows] == [math.inf, 0.0]


def test_cells_are_plain_files(tmp_path, corpus, threads):
    sweep(
        TINY, tmp_path, x=Axis("lr", (1e-3,)), y=Axis("weight_decay", (0.1,)), corpus=corpus, engine=threads
    )
    [path] = (tmp_path / "cells").glob("*.json")
    stored = json.loads(path.read_text())
    assert stored["settings"] == asdict(replace(TINY, lr=1e-3, weight_decay=0.1))
    assert stored["outcome"]["steps"] == 12


def test_a_sweep_is_typed_saved_loaded_printed_and_drawn(corpus, threads, tmp_path):
    found = run_sweep(TINY, tmp_path / "out", x=X, y=Y, corpus=corpus, engine=threads, stack_size=1)
    assert isinstance(found, Sweep)
    assert (found.cells, found.of, found.lost, found.x, found.settings) == (9, 9, (), X, TINY)
    assert [edge.x for edge in found.edges] == list(X.values)
    assert found.counted is not None
    numel = set(found.records.where(level="cell", quantity="numel").table["value"].to_pylist())
    assert numel == {found.counted.values}
    assert f"blocks ({found.counted.tensors} of {found.counted.of_tensors} tensors" in str(found)
    for folder in (tmp_path / "out", found.save(tmp_path / "copy")):
        again = load(folder)
        assert isinstance(again, Sweep)
        assert again.records.to_rows() == found.records.to_rows()
        assert (again.settings, again.x, again.y, again.corpus) == (TINY, X, Y, found.corpus)
        assert again.counted == found.counted
        np.testing.assert_equal([vars(edge) for edge in again.edges], [vars(edge) for edge in found.edges])
    assert "9 of 9 cells were trained" in str(found)
    assert found.plot().axes
    assert found.plot.names == ["phase", "edge"]
