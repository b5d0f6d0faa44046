"""Trace against the obvious float64 code; going on after a kill; growing and changing series."""

import itertools
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from synthetic_series import counted, tiny_state, walk, write_series

from normgrowth import InputError, Records, SeriesWarning, load, trace
from normgrowth.stored_result import StoredResult

LAYER = {"layer.0": ".h.0.", "layer.1": ".h.1."}
ROLE = {
    "norm": "ln_1",
    "attention.qkv": "c_attn",
    "attention.output": "attn.c_proj",
    "feedforward": "mlp",
}


def vector(state, part):
    chosen = [tensor for name, tensor in state.items() if ".h." in name and part in name]
    return torch.cat([tensor.double().flatten() for tensor in chosen]).numpy()


def angle(a, b):
    u, v = a / np.linalg.norm(a), b / np.linalg.norm(b)
    return 2 * np.arctan2(np.linalg.norm(u - v), np.linalg.norm(u + v))


def test_matrices_and_vectors_are_parts(tmp_path):
    """By the number of dimensions of each tensor; a series of matrices alone has no parts."""
    states = walk(3)
    records = trace(write_series(tmp_path / "both", states)).records
    for name, chosen in (("matrices", lambda t: t.dim() > 1), ("vectors", lambda t: t.dim() == 1)):
        path = [
            torch.cat([t.double().ravel() for key, t in state.items() if ".h." in key and chosen(t)])
            for state in states
        ]
        _, norms = records.series("norm", level="part", name=name)
        np.testing.assert_allclose(norms, [x.norm() for x in path], rtol=1e-12)
        _, alignments = records.series("alignment", level="part", name=name)
        steps = [b - a for a, b in itertools.pairwise(path)]
        expected = [(a @ d / a.norm() / d.norm()).item() for a, d in zip(path, steps, strict=False)]
        np.testing.assert_allclose(alignments, expected, rtol=1e-9)
    for name, place in LAYER.items():
        path = [
            torch.cat([t.double().ravel() for key, t in state.items() if place in key and t.dim() > 1])
            for state in states
        ]
        _, norms = records.series("norm", level="layer_matrices", name=name)
        np.testing.assert_allclose(norms, [x.norm() for x in path], rtol=1e-12)
    terms = [
        records.matrix(f"total_growth{term}", level="layer_matrices") for term in ("", "_steps", "_alignment")
    ]
    np.testing.assert_allclose(terms[0].values, terms[1].values + terms[2].values)
    layers = [records.matrix("norm", level=level).values for level in ("layer_matrices", "part")]
    np.testing.assert_allclose(
        (layers[0] ** 2).sum(axis=1), layers[1][:, 0] ** 2
    )  # the matrices of the blocks
    alone = [{key: t for key, t in state.items() if t.dim() > 1} for state in states]
    found = trace(write_series(tmp_path / "one", alone)).records.distinct("level")
    assert not {"part", "layer_matrices"} & set(found)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("format", ["safetensors", "pt", "distributed"])
def test_every_scope_equals_the_obvious_code(tmp_path, format):
    states = walk(5)
    for i, state in enumerate(states):
        if format == "safetensors":
            save_file(state, tmp_path / f"step_{i}.safetensors")
        elif format == "pt":
            torch.save({"model": state}, tmp_path / f"step_{i}.pt")
        else:
            dcp.save(state, checkpoint_id=tmp_path / f"step_{i}", no_dist=True)
    records = trace(tmp_path).records
    things = [("model", "model", "")]
    things += [("layer", name, part) for name, part in LAYER.items()]
    things += [("role", name, part) for name, part in ROLE.items()]
    things += [("tensor", name, name) for name in states[0] if ".h." in name and "bias" not in name]
    assert set(records.where(level="layer").distinct("name")) == set(LAYER)
    assert set(records.where(level="role").distinct("name")) == set(ROLE)
    for level, name, part in things:
        path = [vector(state, part) for state in states]
        steps, norms = records.series("norm", level=level, name=name)
        assert list(steps) == list(range(5))
        np.testing.assert_allclose(norms, [np.linalg.norm(x) for x in path], rtol=1e-12)
        expected = {
            "cosine": [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.pairwise(path)],
            "angle": [angle(a, b) for a, b in itertools.pairwise(path)],
            "step_size": [np.linalg.norm(b - a) for a, b in itertools.pairwise(path)],
            "growth": np.diff([x @ x for x in path]),
            "total_growth": [x @ x - path[0] @ path[0] for x in path[1:]],
            "total_growth_steps": np.cumsum([(b - a) @ (b - a) for a, b in itertools.pairwise(path)]),
            "cosine to first": [x @ path[0] / np.linalg.norm(x) / np.linalg.norm(path[0]) for x in path[1:]],
            "step_size to first": [np.linalg.norm(x - path[0]) for x in path[1:]],
            "alignment": [
                a @ (b - a) / np.linalg.norm(a) / np.linalg.norm(b - a) for a, b in itertools.pairwise(path)
            ],
        }
        for quantity, values in expected.items():
            quantity, _, reference = quantity.partition(" to ")
            at, got = records.series(quantity, level=level, name=name, reference=reference or None)
            assert list(at) == [1, 2, 3, 4]
            np.testing.assert_allclose(got, values, rtol=1e-9, atol=1e-12, err_msg=f"{quantity} of {name}")


def test_lags_tokens_and_scopes(tmp_path):
    states = walk(6)
    write_series(tmp_path, states)
    records = trace(tmp_path, lags=(1, 3), tokens_per_step=2048, run="mine").records
    path = [counted(state) for state in states]
    steps, values = records.series("cosine", reference="lag3")
    assert list(steps) == [300, 400, 500]
    expected = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(path, path[3:], strict=False)]
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    np.testing.assert_array_equal(records.series("cosine", reference="lag1")[1], records.series("cosine")[1])
    axis = dict(zip(*(records.table[column].to_pylist() for column in ("step", "tokens")), strict=True))
    assert axis == {100 * i: 204800 * i for i in range(6)}
    assert records.distinct("run") == ["mine"]
    everything = trace(tmp_path, include="all").records
    whole = torch.cat([tensor.double().flatten() for tensor in states[0].values()])
    assert everything.series("norm")[1][0] == pytest.approx(float(whole.norm()))
    embedding = trace(tmp_path, select="wte").records
    assert embedding.series("norm")[1][0] == pytest.approx(
        float(states[0]["transformer.wte.weight"].double().norm())
    )
    rest = trace(tmp_path, exclude=r"\.h\.0\.", first=False).records
    assert rest.where(level="layer").distinct("name") == ["layer.1"]
    assert not len(rest.where(reference="first"))


def test_tied_tensors_count_once(tmp_path):
    state = tiny_state()
    state["lm_head.weight"] = state["transformer.wte.weight"]
    for i in range(2):
        torch.save(state, tmp_path / f"step_{i}.pt")
    untied = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
    norm = torch.cat([tensor.double().flatten() for tensor in untied.values()]).norm()
    with pytest.warns(SeriesWarning, match="has exactly the weights of step 0"):
        records = trace(tmp_path, include="all").records
    assert records.series("norm")[1][0] == pytest.approx(float(norm))


def test_a_tied_head_that_was_stored_as_a_copy_counts_once(tmp_path):
    states = walk(3)
    norms = []
    for i, state in enumerate(states):
        state["lm_head.weight"] = state["transformer.wte.weight"].clone()
        save_file(state, tmp_path / f"step_{i}.safetensors")
        untied = [tensor for name, tensor in state.items() if name != "lm_head.weight"]
        norms.append(float(torch.cat([tensor.double().flatten() for tensor in untied]).norm()))
    with pytest.warns(
        SeriesWarning, match=r"lm_head.weight: equals transformer.wte.weight in every checkpoint"
    ):
        records = trace(tmp_path, include="all").records
    np.testing.assert_allclose(records.series("norm")[1], norms, rtol=1e-12)
    state = states[1]  # tied at first, then not: two tensors
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    save_file(state, tmp_path / "step_1.safetensors")
    whole = [float(torch.cat([t.double().flatten() for t in state.values()]).norm()) for state in states]
    np.testing.assert_allclose(trace(tmp_path, include="all").records.series("norm")[1], whole, rtol=1e-12)


@pytest.mark.parametrize("format", ["safetensors", "pt"])
def test_tasks_are_pure_and_can_be_sent(tmp_path, format):
    """What a cluster will need: a task that went through pickle gives the same bits in another process."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from normgrowth import open_source
    from normgrowth.trace import by_step as measure

    for i, state in enumerate(walk(2)):
        if format == "safetensors":
            save_file(state, tmp_path / f"step_{i}.safetensors")
        else:
            torch.save(state, tmp_path / f"step_{i}.pt")
    opened = tuple(entry.open() for entry in open_source(tmp_path).entries)
    names = list(opened[0].tensors)
    numel = np.array([opened[0].tensors[name].numel for name in names])
    task = measure.Task(opened, range(len(names)), names, numel, ["F32"] * len(names))
    here = measure.run_task(task)
    assert np.count_nonzero(here[:, 0]) > 5, "zeros would be equal too"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        there = pool.submit(measure.run_task, task).result(timeout=120)
    assert np.array_equal(here, there)


@pytest.mark.parametrize(
    ("file", "save", "fetched_at_a_time"),
    [
        ("model.safetensors", save_file, (0, 0)),  # read by ranges
        ("pytorch_model.bin", torch.save, (3, 2)),  # the first, the previous and the current one
    ],
)
def test_a_hub_series_equals_the_local_one_and_leaves_nothing_behind(tmp_path, file, save, fetched_at_a_time):
    from hub_server import HubServer

    states = walk(5)
    folders = {}
    for i, state in enumerate(states):
        folder = tmp_path / "hub" / f"step{i * 10}"
        folder.mkdir(parents=True)
        save(state, folder / file)
        folders[f"step{i * 10}"] = folder
    folders["main"] = folders["step40"]
    out = tmp_path / "out"
    on_disk = []

    def look(*_):
        on_disk.append(len(list((out / ".scratch").rglob(file))))

    with HubServer({"org/tiny": folders}) as server:
        fetched = trace("hf://org/tiny@step*", out, endpoint=server.endpoint, progress=look, run="x").records
        assert max(on_disk) == fetched_at_a_time[0]
        assert not list(out.rglob(file))
        assert server.asked_twice() == 0
        on_disk.clear()
        options = {"endpoint": server.endpoint, "progress": look, "run": "x"}
        again = trace("hf://org/tiny@step*", out, first=False, overwrite=True, **options).records
        assert max(on_disk) == fetched_at_a_time[1]
        with pytest.warns(SeriesWarning, match="main: skipped"):
            trace("hf://org/tiny", endpoint=server.endpoint)
        with pytest.raises(InputError, match="no branch or tag matches"):
            trace("hf://org/tiny@epoch*", endpoint=server.endpoint)
    local = trace(tmp_path / "hub", run="x").records
    assert same_bits(fetched, local)
    assert same_bits(again, trace(tmp_path / "hub", run="x", first=False).records)


def test_another_sharding_between_checkpoints(tmp_path):
    """A world size that changed: pieces no longer match, values still do."""
    from normgrowth.checkpoints.checkpoint import Checkpoint, Chunked, Ranges, Tensor
    from normgrowth.trace.by_step import measure_checkpoint

    rng = np.random.default_rng(0)
    rows = 400_000  # more than a chunk, so that pieces are summed where they lie
    whole = [rng.standard_normal((rows, 4)).astype(np.float32) for _ in range(2)]

    class Sharded(Checkpoint):
        def __init__(self, values, cut):
            boxes = (((0, 0), (cut, 4)), ((cut, 0), (rows - cut, 4)))
            super().__init__("x", {"w": Tensor("F32", (rows, 4), Chunked(boxes))}, Ranges())
            self.parts = [values[:cut].ravel().view(np.uint32), values[cut:].ravel().view(np.uint32)]

        def pieces(self, name):
            return self.parts

    expected = float(((whole[1].astype(float) - whole[0]) ** 2).sum())
    for cuts in ((2, 2), (2, 3), (rows // 2, rows // 2), (rows // 2, 7)):
        got = measure_checkpoint(
            Sharded(whole[1], cuts[0]), [("previous", Sharded(whole[0], cuts[1]))], ["w"]
        )
        assert got.against["previous"].delta[0] == pytest.approx(expected, rel=1e-12)


def same_bits(one, other):
    """Equal to the bit; NaN equals itself here, which Table.equals denies."""
    if isinstance(one, Records):
        one, other = one.table, other.table
    bits = [table["value"].to_numpy().view(np.int64) for table in (one, other)]
    return np.array_equal(*bits) and one.drop_columns("value").equals(other.drop_columns("value"))


# --- going on -----------------------------------------------------------------------------------


LONG = 400  # steps


def moment_files(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "moments").glob("step-*.parquet")}


def start(source, out):
    return subprocess.Popen(
        [sys.executable, "-m", "normgrowth", "trace", str(source), "-o", str(out), "--workers", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell ignores Ctrl-C for what it runs in the background, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture(scope="module")
def long_series(tmp_path_factory):
    """Long enough that a signal finds the trace at work: four files under many names."""
    folder = tmp_path_factory.mktemp("long")
    for i, state in enumerate(walk(4, width=128)):
        save_file(state, folder / f"step_{i}.safetensors")
    for i in range(4, LONG):
        (folder / f"step_{i}.safetensors").hardlink_to(folder / f"step_{i % 4}.safetensors")
    return folder


def interrupted(series, out, how):
    """Start a trace, send a signal once it has measured a few steps, and return how it ended."""
    process = start(series, out)
    while len(list((out / "moments").glob("step-*.parquet"))) < 3 if out.exists() else True:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.send_signal(how)
    return process.communicate(timeout=60)[1], process.returncode


@pytest.mark.filterwarnings("ignore::normgrowth.errors.SeriesWarning")  # the same four files, and it says so
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_and_started_again_it_ends_with_the_same_bits(long_series, tmp_path, how):
    whole = tmp_path / "whole"
    trace(long_series, whole)
    for attempt in range(5):  # on a busy machine the trace may have ended before our signal reaches it
        broken = tmp_path / f"broken{attempt}"
        said, code = interrupted(long_series, broken, how)
        kept = moment_files(broken)
        if len(kept) < LONG:
            break
    assert 3 <= len(kept) < LONG, f"the signal always came too late to test anything: {code} {said}"
    assert not (broken / "records.parquet").exists()
    if how == signal.SIGINT:
        assert code == 130, said
        assert said.splitlines()[-1] == f"normgrowth: interrupted; results so far are kept in {broken}"
    result = trace(long_series, broken)
    after = moment_files(broken)
    assert all(after[name] == stamp for name, stamp in kept.items()), "finished work was done again"
    assert same_bits(result.records, Records.read(whole))
    assert result.findings == load(whole).findings != ()
    assert (broken / "records.parquet").read_bytes() == (whole / "records.parquet").read_bytes()
    assert not list(broken.rglob("*.part"))


def test_a_longer_series_is_extended_and_not_recomputed(tmp_path):
    states = walk(6)
    series, out = tmp_path / "series", tmp_path / "out"
    write_series(series, states[:4])
    trace(series, out)
    before = moment_files(out)
    write_series(tmp_path / "more", states)
    for i in (4, 5):
        (tmp_path / "more" / f"step_{i * 100}.safetensors").rename(series / f"step_{i * 100}.safetensors")
    extended = trace(series, out).records
    after = moment_files(out)
    assert len(after) == 6
    assert all(after[name] == stamp for name, stamp in before.items())
    assert same_bits(extended, trace(series).records)


@pytest.mark.filterwarnings("ignore:.*another run, or re-initialized:normgrowth.errors.SeriesWarning")
def test_a_checkpoint_that_came_between_is_measured_with_its_successor(tmp_path):
    series, out = write_series(tmp_path / "series", walk(4)), tmp_path / "out"
    trace(series, out)
    before = moment_files(out)
    save_file(tiny_state(98), series / "step_150.safetensors")
    assert same_bits(trace(series, out).records, trace(series).records)
    after = moment_files(out)
    assert {name for name in after if before.get(name) != after[name]} == {
        "step-000000150.parquet",
        "step-000000200.parquet",
    }


def test_damaged_moments_are_measured_again(tmp_path):
    series = write_series(tmp_path / "series", walk(3))
    expected = trace(series, tmp_path / "out").records
    (tmp_path / "out" / "moments" / "step-000000100.parquet").write_bytes(b"PAR1 but not really")
    assert same_bits(trace(series, tmp_path / "out").records, expected)


def test_the_file_is_plain_parquet_with_the_documented_columns(tmp_path):
    series = write_series(tmp_path / "series", walk(2))
    trace(series, tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "records.parquet")
    assert table.column_names == [
        "run",
        "step",
        "level",
        "name",
        "layer",
        "role",
        "quantity",
        "reference",
        "value",
    ]
    read = StoredResult.read(tmp_path / "out").fields
    assert read["steps"] == [0, 100]
    assert read["selection"]["include"] == "blocks"


# --- what must be said --------------------------------------------------------------------------


def test_nan_weights_are_named_and_the_rest_is_measured(tmp_path):
    states = walk(3)
    name = "transformer.h.1.mlp.c_fc.weight"
    states[1][name][0, :2] = float("nan")
    series = write_series(tmp_path / "series", states)
    with pytest.warns(SeriesWarning, match=rf"step_100.*2 of 256 values of tensor {name}"):
        records = trace(series, tmp_path / "out").records
    assert np.isnan(records.series("norm")[1][1])
    assert np.isfinite(records.series("norm", level="layer", name="layer.0")[1]).all()
    assert list(records.series("nonfinite")[1]) == [0, 2, 0]
    assert len(StoredResult.read(tmp_path / "out").fields["problems"]) == 1


def test_one_checkpoint_gives_norms_and_says_what_is_missing(tmp_path):
    series = write_series(tmp_path / "series", walk(1))
    with pytest.warns(SeriesWarning, match="only one checkpoint"):
        records = trace(series).records
    assert records.series("norm")[1][0] == pytest.approx(np.linalg.norm(counted(walk(1)[0])))


def test_shapes_and_names_that_change(tmp_path):
    states = walk(2)
    states[1]["transformer.h.0.mlp.c_fc.weight"] = torch.ones(8, 9)
    series = write_series(tmp_path / "shape", states)
    with pytest.raises(InputError, match=r"step_100.*c_fc.weight has shape \[8, 9\], but \[8, 32\]"):
        trace(series)
    assert len(trace(series, exclude="c_fc.weight").records)
    del states[1]["transformer.h.0.mlp.c_fc.weight"]
    with pytest.raises(InputError, match=r"step_100.*lacks transformer.h.0.mlp.c_fc.weight"):
        trace(write_series(tmp_path / "lacks", states))
    more = walk(2)
    more[1]["transformer.h.1.mlp.new.weight"] = torch.ones(3)
    with pytest.raises(InputError, match="has a new tensor"):
        trace(write_series(tmp_path / "new", more))


def test_zero_tensors_are_no_trouble(tmp_path):
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tiny_state().items()}
    with pytest.warns(SeriesWarning) as said:
        records = trace(write_series(tmp_path / "series", [zeros, zeros, tiny_state()])).records
    assert any("all values of all tensors are 0" in str(warning.message) for warning in said)
    assert list(records.series("norm")[1][:2]) == [0, 0]
    assert np.isnan(records.series("cosine")[1]).all()
    assert records.series("growth")[1][1] > 0


def test_asking_for_what_is_not_there_says_what_is(tmp_path):
    records = trace(write_series(tmp_path / "series", walk(2))).records
    with pytest.raises(InputError, match=r"no nrm at level model; available: norm, rms"):
        records.series("nrm")
    with pytest.raises(InputError, match=r"of layer\.9"):
        records.series("norm", level="layer", name="layer.9")
    with pytest.raises(InputError, match="several series"):
        records.series("norm", level="layer")
    with pytest.raises(InputError, match="no column"):
        records.where(color="red")


def test_nothing_counted_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no tensor is counted"):
        trace(write_series(tmp_path / "series", walk(2)), select="nothing-like-this")
    with pytest.raises(InputError, match="lags"):
        trace(tmp_path / "series", lags=(0,))
