"""Stripes: the same sums as step by step, to the bit; each byte once; nothing that was finished is done again."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import closing

import numpy as np
import psutil
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from range_server import RangeServer
from refusals import refused
from safetensors.torch import save_file
from synthetic_series import moved, walk, write_series

import normgrowth
from normgrowth import InputError, SeriesWarning, trace
from normgrowth.checkpoints.remote.remote_file import RemoteFile
from normgrowth.checkpoints.remote.transport import BufferPool
from normgrowth.checkpoints.series import open_source
from normgrowth.engine import Threads
from normgrowth.engine.ray_cluster import Cluster
from normgrowth.moments.moments import CHUNK
from normgrowth.trace import by_stripe as stripes
from normgrowth.trace.by_stripe import Job, cut
from normgrowth.trace.output.store import Store
from normgrowth.trace.sampling import sampled_steps


@pytest.fixture
def threads():
    with closing(Threads(3)) as engine:
        yield engine


def same(one, other):
    """Records equal to the bit (NaN equals itself), and what lint found."""
    tables = [one.records.table, other.records.table]
    assert np.array_equal(*(table["value"].to_numpy().view(np.int64) for table in tables))
    assert tables[0].drop_columns("value").equals(tables[1].drop_columns("value"))
    assert one.findings == other.findings


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


@pytest.fixture
def small_stripes(monkeypatch):
    """Small tensors make several."""
    monkeypatch.setattr(stripes, "SMALLEST", 100)
    monkeypatch.setattr(stripes, "LARGEST", CHUNK)
    monkeypatch.setattr(stripes, "CHUNK", 100)


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


@pytest.mark.filterwarnings("ignore::normgrowth.SeriesWarning")
def test_tensors_of_no_values_and_of_one(tmp_path, threads):
    kinds = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float16]
    for i, state in enumerate(walk(5)):
        state |= {
            "h.0.none.weight": torch.zeros(0, 8),
            "h.1.one": torch.tensor(2.0 + i),
            "none": torch.zeros(0),
        }
        own = {
            n: t.to(kinds[(i + k) % 4]) if t.numel() else t.double() for k, (n, t) in enumerate(state.items())
        }
        save_file(own | {"h.0.whole": torch.arange(7) + i}, tmp_path / f"step_{i}.safetensors")
    for include in ("blocks", "all"):
        local = trace(tmp_path, run="x", include=include)
        same(trace(tmp_path, run="x", include=include, engine=threads), local)
        with RangeServer(tmp_path) as server:
            there = trace(server.url, run="x", include=include)
            assert server.asked_twice() == 0
        bits = [one.records.table["value"].to_numpy().view(np.int64) for one in (there, local)]
        assert np.array_equal(*bits)


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


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore::normgrowth.SeriesWarning")
def test_large_tensors_stored_in_another_order_of_axes(tmp_path, threads):
    rng = torch.Generator().manual_seed(0)
    for i in range(3):
        state = {
            "h.0.mlp.up.weight": torch.randn(700, 2000, generator=rng).t(),
            "h.0.attn.mask": torch.tril(torch.ones(1100, 1000)).t(),
        }
        dcp.save(state, checkpoint_id=tmp_path / f"step_{i}", no_dist=True)
    same(trace(tmp_path, engine=threads), trace(tmp_path))


@pytest.mark.filterwarnings("ignore::normgrowth.SeriesWarning")
def test_a_buffer_that_is_cut_is_still_seen(tmp_path, threads):
    for i, state in enumerate(walk(3)):
        large = torch.tril(torch.ones(2049, 2048))
        save_file(state | {"transformer.h.0.attn.table": large}, tmp_path / f"step_{i}.safetensors")
    local = trace(tmp_path, include="all")
    assert [finding.kind for finding in local.findings or ()] == ["buffer"]
    same(trace(tmp_path, include="all", engine=threads, memory=1), local)


def test_a_dtype_that_is_unknown_in_a_later_step(tmp_path, threads):
    write_series(tmp_path, walk(3))
    path = tmp_path / "step_200.safetensors"
    content = path.read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:size])
    header["transformer.h.0.ln_1.weight"]["dtype"] = "F8_E8M0"
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + content[size:])
    message = refused(trace, tmp_path, engine=threads)
    assert message.startswith(f"{path}: tensor transformer.h.0.ln_1.weight has dtype F8_E8M0, which")


def test_more_files_than_a_process_may_have_open(tmp_path, threads):
    write_series(tmp_path, walk(70))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, before[1]))
    try:
        trace(tmp_path, engine=threads, lint=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_formats_that_are_fetched_are_not_all_fetched_at_once(tmp_path, monkeypatch):
    (tmp_path / "series").mkdir()
    for i, state in enumerate(walk(8)):
        if i < 2:
            save_file(state, tmp_path / "series" / f"step_{i}.safetensors")
        else:
            torch.save(state, tmp_path / "series" / f"step_{i}.pt")
    fetch, at_once = RemoteFile.download, []

    def counting(self, folder):
        at_once.append(len(list(folder.parent.iterdir())))
        return fetch(self, folder)

    monkeypatch.setattr(RemoteFile, "download", counting)
    with RangeServer(tmp_path / "series") as server:
        found = trace(server.url, tmp_path / "out", run="x")
    assert len(at_once) == 6
    assert max(at_once) <= 2
    same(found, trace(tmp_path / "series", run="x"))


# Memory ---------------------------------------------------------------------------------------------


class Watched(BufferPool):
    """Remembers how much was in use at one time."""

    in_use = most = 0
    counting = threading.Lock()

    def take(self, size):
        memory = super().take(size)
        with self.counting:
            self.in_use += memory.size
            self.most = max(self.most, self.in_use)
        return memory

    def give(self, memory):
        with self.counting:
            self.in_use -= memory.size
        super().give(memory)


@pytest.mark.parametrize(("lags", "held"), [((), 3), ((1,), 3), ((8,), 10), ((2, 5), 7)])
def test_what_a_worker_holds_is_what_it_is_counted_to_hold(tmp_path, lags, held):
    write_series(tmp_path, walk(25))
    with RangeServer(tmp_path) as server:
        checkpoints = {i: entry.open() for i, entry in enumerate(open_source(server.url).entries)}
        plan = {
            i: tuple({0, i - 1, *(i - lag for lag in lags if lag <= i)} - {i} if i else ())
            for i in checkpoints
        }
        name, spare = "transformer.h.0.mlp.c_fc.weight", Watched()
        job = Job(checkpoints, plan, [name], np.array([256]), None, spare)
        [stripe] = cut(job, 1, 1)
        stripes.run_stripe(job, stripe)
    assert spare.in_use == 0
    assert spare.most in (
        held * 1024,
        (held + 1) * 1024,
    )  # one is read ahead, when the reader is quick enough
    assert spare.most <= 256 * job.value_bytes()
    assert job.most_workers(10 * stripes.SMALLEST * job.value_bytes()) == 10
    assert job.most_workers(1) == 1


def test_memory_is_shared_out_once(tmp_path, monkeypatch, small_stripes):
    write_series(tmp_path, walk(4, width=64))
    seen = []

    def spy(job, memory, workers):
        found = list(cut(job, memory, workers))
        seen.append((workers, max(sum(part.size for part in stripe) for stripe in found), job.value_bytes()))
        return found

    monkeypatch.setattr(stripes, "cut", spy)
    monkeypatch.setattr(stripes, "ROUNDS", 1)
    with RangeServer(tmp_path) as server:
        for memory in (1_000, 20_000, 200_000):
            trace(server.url, memory=memory, lint=False)
            workers, largest, value_bytes = seen[-1]
            assert workers * largest * value_bytes <= max(memory, 100 * value_bytes)
            assert workers == 1 or workers * largest * value_bytes >= memory / 2


def test_results_are_added_as_they_come(tmp_path, small_stripes):
    """And not held until the last. With one thread: of two, one may wait long for a busy machine."""
    threads = Threads(1)
    write_series(tmp_path, walk(4, width=32))
    results, alive = [], []

    class Watching(Counting):
        def result(self, handle):
            result = self.engine.result(handle)
            results.extend(weakref.ref(array) for array in result.values())
            alive.append(sum(ref() is not None for ref in results) / len(result))
            return result

    found = trace(tmp_path, engine=Watching(threads), memory=1)
    threads.close()
    assert len(alive) > 40
    assert max(alive) <= 10
    # Sums of chunks of 100 values are others in the last digits.
    plain = trace(tmp_path)
    np.testing.assert_allclose(
        found.records.table["value"].to_numpy(), plain.records.table["value"].to_numpy(), rtol=1e-9, atol=1e-9
    )
    assert found.findings == plain.findings


@given(
    st.lists(st.one_of(st.integers(0, 50), st.integers(CHUNK - 2, 5 * CHUNK)), min_size=1, max_size=12),
    st.integers(1, 1 << 32),
    st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_every_value_is_in_one_stripe(sizes, memory, workers):
    names = [f"w{i}" for i in range(len(sizes))]
    job = Job({0: FakeCheckpoint(names, sizes)}, {0: ()}, names, np.array(sizes), None)
    parts = [part for stripe in cut(job, memory, workers) for part in stripe]
    for item, size in enumerate(sizes):
        own = [part for part in parts if part.item == item]
        assert [part.start for part in own] == [0, *(part.stop for part in own[:-1])]
        assert own[-1].stop == size
        assert all(part.start % CHUNK == 0 for part in own)


class FakeCheckpoint:
    def __init__(self, names, sizes):
        from normgrowth.checkpoints.checkpoint import Tensor

        self.tensors = {name: Tensor("F32", (size,)) for name, size in zip(names, sizes, strict=True)}
        self.ranges = dict.fromkeys(names, ())


def test_over_a_network_each_byte_is_asked_for_once(tmp_path):
    write_series(tmp_path, walk(6))
    with RangeServer(tmp_path) as server:
        found = trace(server.url, run="x", lags=[2])
        assert server.asked_twice() == 0
        inside = sum(
            checkpoint.tensors[name].nbytes
            for entry in open_source(tmp_path).entries
            for checkpoint in [entry.open()]
            for name in found.records.where(level="tensor").distinct("name")
        )
        data = sum(request.sent for request in server.requests if request.status == 206)
        header = 6 * (tmp_path / "step_0.safetensors").stat().st_size - 6 * sum(
            t.nbytes for t in open_source(tmp_path).entries[0].open().tensors.values()
        )
        assert data == inside + header  # nothing but headers and what counts
    same(found, trace(tmp_path, run="x", lags=[2]))


def test_a_damaged_answer_names_the_step(tmp_path, monkeypatch):
    from normgrowth.checkpoints.remote import retry as attempts

    monkeypatch.setattr(attempts, "PAUSES", (0.01,))
    write_series(tmp_path, walk(4))
    with RangeServer(tmp_path) as server:
        server.fail("GET /step_200", status=503)
        with pytest.raises(InputError, match="step_200"):
            trace(server.url)


def test_what_was_finished_is_not_done_again(tmp_path, threads, small_stripes):
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


@pytest.mark.parametrize("saved", [1, 3])
def test_nor_if_the_kill_comes_when_steps_are_stored(tmp_path, threads, monkeypatch, small_stripes, saved):
    write_series(tmp_path / "series", walk(5))
    save, calls = Store.save, []

    def killed(*args):
        if len(calls) == saved:
            raise KeyboardInterrupt
        calls.append(args)
        save(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            trace(tmp_path / "series", tmp_path / "out", engine=threads, memory=1)
    rest = Counting(threads)
    found = trace(tmp_path / "series", tmp_path / "out", engine=rest, memory=1)
    assert rest.given == 0
    same(found, trace(tmp_path / "series", engine=threads, memory=1))


def test_what_was_finished_for_another_lint_is_done_again(tmp_path, threads, monkeypatch, small_stripes):
    """An upgrade in between may look at more or fewer values."""
    write_series(tmp_path / "series", walk(4))
    with pytest.raises(KeyboardInterrupt):
        trace(tmp_path / "series", tmp_path / "out", engine=Counting(threads, at_most=5), memory=1)
    monkeypatch.setattr(sampled_steps, "MOST", 50)
    rest, whole = Counting(threads), Counting(threads)
    found = trace(tmp_path / "series", tmp_path / "out", engine=rest, memory=1)
    same(found, trace(tmp_path / "series", engine=whole, memory=1))
    assert rest.given == whole.given


def test_an_interrupt_does_not_wait_for_the_server(tmp_path, small_stripes):
    write_series(tmp_path, walk(4))
    begun = threading.Event()

    def interrupt():
        begun.wait()
        while sum(request.status == 503 for request in server.requests) < 3:  # all three wait to ask again
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        at.append(time.monotonic())

    at = []
    killer = threading.Thread(target=interrupt)
    killer.start()
    with RangeServer(tmp_path) as server:
        server.fail("GET /step_200", after=2, status=503, headers={"Retry-After": "60"})
        begun.set()
        with pytest.raises(KeyboardInterrupt):
            trace(server.url, workers=3)
    killer.join()
    assert time.monotonic() - at[0] < 10


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
    with pytest.warns(SeriesWarning, match="only one checkpoint"):
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

    @pytest.mark.slow
    def test_a_driver_that_is_killed_and_started_again(self, tmp_path):
        """It asks for nothing of what was finished; and nothing of its Ray stays behind."""
        series, out = write_series(tmp_path / "series", walk(4, layers=4)), tmp_path / "out"
        local = trace(series, run="x")
        tensors = len(local.records.where(level="tensor").distinct("name"))
        with RangeServer(series) as server:
            driver = [sys.executable, "-c", DRIVER, server.url, str(out)]
            server.fail("GET .*safetensors", after=8, trickle=0.0005)  # not the headers
            with (tmp_path / "log").open("w") as log:
                first = subprocess.Popen(driver, stdout=log, stderr=log)
            wait_until(lambda: len(list(out.glob("stripes/*.npz"))) >= 3 or first.poll() is not None)
            assert first.poll() is None, (tmp_path / "log").read_text()
            of_ray = psutil.Process(first.pid).children(recursive=True)
            assert len(of_ray) > 3
            first.kill()
            first.wait()
            wait_until(lambda: not any(process.is_running() for process in of_ray))
            kept = len(list(out.glob("stripes/*.npz")))
            assert 3 <= kept < tensors
            server.faults.clear()
            server.requests.clear()
            subprocess.run(driver, check=True, capture_output=True)
            header = 8 + int.from_bytes((series / "step_0.safetensors").read_bytes()[:8], "little")
            asked = [
                int(request.headers.get("range", "bytes=0-")[6:].split("-")[0]) for request in server.requests
            ]
            assert sum(start >= header for start in asked) == 4 * (tensors - kept)
        assert not (out / "stripes").exists()
        same(normgrowth.load(out), local)


DRIVER = """
import sys
from normgrowth import trace
from normgrowth.engine.select import chosen
from normgrowth.trace import by_stripe as stripes
cut = stripes.cut
stripes.cut = lambda *args: ((part,) for stripe in cut(*args) for part in stripe)  # one for each tensor
with chosen("ray", workers=2) as engine:
    trace(sys.argv[1], sys.argv[2], run="x", engine=engine)
"""


def wait_until(true, seconds=120):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
