"""Stripes: the same sums as step by step, to the bit; each byte once; nothing that was finished is done again."""

import os
import signal
import threading
import time
from contextlib import closing

import numpy as np
import psutil
import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoints import moved, walk, write_series
from hypothesis import given, settings
from hypothesis import strategies as st
from range_server import RangeServer
from safetensors.torch import save_file

from normgrowth import InputError, SeriesWarning, trace
from normgrowth.engine import Threads
from normgrowth.engine.cluster import Cluster
from normgrowth.weights import stripes
from normgrowth.weights.moments import CHUNK
from normgrowth.weights.sources.series import open_source
from normgrowth.weights.stripes import Job, cut


@pytest.fixture
def threads():
    with closing(Threads(3)) as engine:
        yield engine


def same(one, other):
    """Records equal to the bit (NaN equals itself), and what lint found."""
    bits = [records.table["value"].to_numpy().view(np.int64) for records in (one, other)]
    assert np.array_equal(*bits)
    assert one.table.drop_columns("value").equals(other.table.drop_columns("value"))
    assert one.made_by["findings"] == other.made_by["findings"]


class Counting:
    """An engine that counts what it is given, and can stop the work after some tasks."""

    def __init__(self, engine, at_most=10**9):
        self.engine, self.workers, self.at_most, self.given = engine, 1, at_most, 0

    def submit(self, *args):
        if self.given >= self.at_most:
            raise KeyboardInterrupt
        self.given += 1
        return self.engine.submit(*args)

    def __getattr__(self, name):
        return getattr(self.engine, name)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("format", ["safetensors", "pt", "distributed"])
@pytest.mark.parametrize("options", [{}, {"first": False}, {"lags": [1, 2, 3]}])
def test_the_same_sums_as_step_by_step(tmp_path, threads, format, options):
    for i, state in enumerate(walk(5)):
        if format == "safetensors":
            save_file(state, tmp_path / f"step_{i}.safetensors")
        elif format == "pt":
            torch.save(
                {"model": {n: t.t() if t.dim() == 2 else t for n, t in state.items()}},
                tmp_path / f"step_{i}.pt",
            )
        else:
            dcp.save(state, checkpoint_id=tmp_path / f"step_{i}", no_dist=True)
    same(trace(tmp_path, engine=threads, **options), trace(tmp_path, **options))


def test_dtypes_that_differ_within_and_between_checkpoints(tmp_path, threads):
    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
    for i, state in enumerate(walk(6)):
        own = {n: t.to(kinds[(i // 2 + k) % 4]) for k, (n, t) in enumerate(state.items())}
        save_file(own, tmp_path / f"step_{i}.safetensors")
    same(trace(tmp_path, engine=threads), trace(tmp_path))


def test_tensors_larger_than_a_stripe_are_cut_where_chunks_end(tmp_path, threads, monkeypatch):
    monkeypatch.setattr(stripes, "SMALLEST", CHUNK)
    monkeypatch.setattr(stripes, "LARGEST", 2 * CHUNK)
    rng = np.random.default_rng(0)
    state = {
        f"h.0.{name}.weight": torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
        for name, shape in {"mlp.up": (1100, 3000), "mlp.down": (5, 7), "attn.c_proj": (1024, 2048)}.items()
    }
    write_series(tmp_path, [state, moved(state, 1), moved(state, 2)])
    same(trace(tmp_path, engine=threads), trace(tmp_path))


@given(
    st.lists(st.one_of(st.integers(0, 50), st.integers(CHUNK - 2, 5 * CHUNK)), min_size=1, max_size=12),
    st.integers(1, 1 << 28),
)
@settings(max_examples=60, deadline=None)
def test_every_value_is_in_one_stripe(sizes, memory):
    names = [f"w{i}" for i in range(len(sizes))]
    job = Job({0: FakeCheckpoint(names, sizes)}, {0: ()}, names, np.array(sizes), None)
    parts = [part for stripe in cut(job, memory) for part in stripe]
    for item, size in enumerate(sizes):
        own = [part for part in parts if part.item == item]
        assert [part.start for part in own] == [0, *(part.stop for part in own[:-1])]
        assert own[-1].stop == size
        assert all(part.start % CHUNK == 0 for part in own)


class FakeCheckpoint:
    def __init__(self, names, sizes):
        from normgrowth.weights.sources.checkpoint import Tensor

        self.tensors = {name: Tensor("F32", (size,)) for name, size in zip(names, sizes, strict=True)}


def test_over_a_network_each_byte_is_asked_for_once(tmp_path):
    write_series(tmp_path, walk(6))
    with RangeServer(tmp_path) as server:
        found = trace(server.url, run="x", lags=[2])
        assert server.asked_twice() == 0
        inside = sum(
            checkpoint.tensors[name].nbytes
            for entry in open_source(tmp_path).entries
            for checkpoint in [entry.open()]
            for name in found.where(scope="tensor").distinct("name")
        )
        data = sum(request.sent for request in server.requests if request.status == 206)
        header = 6 * (tmp_path / "step_0.safetensors").stat().st_size - 6 * sum(
            t.nbytes for t in open_source(tmp_path).entries[0].open().tensors.values()
        )
        assert data == inside + header  # nothing but headers and what counts
    same(found, trace(tmp_path, run="x", lags=[2]))


def test_a_damaged_answer_names_the_step(tmp_path, monkeypatch):
    from normgrowth.weights.sources import attempts

    monkeypatch.setattr(attempts, "PAUSES", (0.01,))
    write_series(tmp_path, walk(4))
    with RangeServer(tmp_path) as server:
        server.fail("GET /step_200", status=503)
        with pytest.raises(InputError, match="step_200"):
            trace(server.url)


def test_what_was_finished_is_not_done_again(tmp_path, threads, monkeypatch):
    monkeypatch.setattr(stripes, "SMALLEST", 100)
    monkeypatch.setattr(stripes, "LARGEST", CHUNK)
    monkeypatch.setattr(stripes, "CHUNK", 100)  # so that small tensors make several stripes
    write_series(tmp_path / "series", walk(4))
    out = tmp_path / "out"
    whole = Counting(threads)
    trace(tmp_path / "series", engine=whole, memory=1)
    assert whole.given > 6
    with pytest.raises(KeyboardInterrupt):
        trace(tmp_path / "series", out, engine=Counting(threads, at_most=5), memory=1)
    kept = len(list((out / "stripes").glob("*.npz")))
    assert 0 < kept <= 5
    damaged = sorted((out / "stripes").glob("*.npz"))[0]
    damaged.write_bytes(damaged.read_bytes()[:50])
    rest = Counting(threads)
    found = trace(tmp_path / "series", out, engine=rest, memory=1)
    assert rest.given == whole.given - kept + 1
    assert not (out / "stripes").exists()
    again = Counting(threads)
    same(trace(tmp_path / "series", out, engine=again), found)
    assert again.given == 0


def test_a_longer_series_reads_what_is_new_and_what_it_is_compared_with(tmp_path):
    states = walk(6)
    write_series(tmp_path / "series", states[:4])
    out = tmp_path / "out"
    with RangeServer(tmp_path / "series") as server:
        trace(server.url, out, run="x")
        write_series(tmp_path / "series", states)
        server.requests.clear()
        found = trace(server.url, out, run="x")
        read = {request.path for request in server.requests if request.status == 206 and request.sent > 4096}
    assert {path.split("_")[1].split(".")[0] for path in read} <= {"0", "300", "400", "500"}
    same(found, trace(tmp_path / "series", run="x"))


def test_nan_and_a_series_of_one(tmp_path, threads):
    states = walk(3)
    states[1]["transformer.h.0.mlp.c_fc.weight"][0, 0] = float("nan")
    write_series(tmp_path / "nan", states)
    with pytest.warns(SeriesWarning, match="NaN"):
        local = trace(tmp_path / "nan")
    with pytest.warns(SeriesWarning, match="NaN"):
        same(trace(tmp_path / "nan", engine=threads), local)
    write_series(tmp_path / "one", states[:1])
    with pytest.warns(SeriesWarning, match="one checkpoint only"):
        trace(tmp_path / "one", engine=threads)


# On a real Ray --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray_of_two():
    with closing(Cluster(workers=2)) as engine:
        yield engine


@pytest.fixture(scope="module")
def wide_series(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    return write_series(folder, walk(4, width=256, layers=4))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
class TestRay:
    def test_the_same_bits(self, wide_series, ray_of_two):
        same(trace(wide_series, engine=ray_of_two), trace(wide_series))

    def test_over_a_network_too(self, wide_series, ray_of_two):
        with RangeServer(wide_series) as server:
            same(trace(server.url, run="x", engine=ray_of_two), trace(wide_series, run="x"))
            assert sum(request.sent for request in server.requests) < 1.1 * sum(
                path.stat().st_size for path in wide_series.iterdir()
            )

    def test_a_worker_killed_in_mid_task(self, wide_series, ray_of_two):
        killed = []

        def kill_one():
            while not killed:
                for process in psutil.process_iter(["name"]):
                    if (process.info["name"] or "").startswith("ray::run"):
                        os.kill(process.pid, signal.SIGKILL)
                        killed.append(process.pid)
                        return
                time.sleep(0.005)

        killer = threading.Thread(target=kill_one)
        killer.start()
        with RangeServer(wide_series) as server:
            server.fail(
                "GET .*safetensors", times=4, trickle=0.00001
            )  # tasks take long enough to be found at work
            found = trace(server.url, run="x", engine=ray_of_two)
        killer.join(timeout=60)
        assert killed
        same(found, trace(wide_series, run="x"))
