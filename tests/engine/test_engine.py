"""Tasks on threads, on processes and on a real Ray of two workers: the same results, whatever dies on the way."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import pytest

from normgrowth.engine import RETRIES, TaskFailed, Threads, code_digest, map, map_with_failures
from normgrowth.engine import ray_cluster as cluster
from normgrowth.engine.processes import Processes
from normgrowth.engine.ray_cluster import Cluster
from normgrowth.engine.select import chosen
from normgrowth.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def engines():
    """One of each kind for all tests, since a Ray takes seconds to start."""
    with ExitStack() as stack:
        yield lru_cache(lambda kind: stack.enter_context(closing(kind(workers=2))))


@pytest.fixture(params=[Threads, Processes, Cluster])
def engine(request, engines):
    return engines(request.param)


@pytest.fixture(params=[Processes, Cluster])
def other_process(request, engines):
    return engines(request.param)


def square(x: int) -> int:
    return x * x


def refuse(x: int) -> None:
    raise InputError(f"task {x} does not like it")


def refuse_oddly(x: int) -> None:
    error = ValueError("holds what cannot be sent")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


def die(log: Path, at_most: int) -> int:
    """The process that runs it is killed, the first times."""
    with log.open("a") as file:
        file.write(f"{os.getpid()}\n")
    if len(log.read_text().splitlines()) <= at_most:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


class Dying:
    def __init__(self, at_most: int) -> None:
        self.at_most = at_most

    def __call__(self, log: Path) -> int:
        return die(log, self.at_most)


def hang(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def hang_in_c(size: int) -> int:
    return 3**size % 7  # one call that does not come back to the interpreter for a long time


def test_results_come_with_their_places(engine):
    assert sorted(map(square, range(20), on=engine)) == [(i, i * i) for i in range(20)]
    assert list(map(square, [], on=engine)) == []
    assert sorted(map(abs, [-3, 2], on=engine)) == [(0, 3), (1, 2)]  # another function


def test_tasks_are_drawn_as_workers_become_free(engine):
    drawn = []

    def tasks():
        for i in range(50):
            drawn.append(i)
            yield i

    results = map(square, tasks(), on=engine)
    next(results)
    assert len(drawn) <= 2 * engine.workers + 1
    results.close()
    assert len(list(map(square, range(5), on=engine))) == 5  # the engine is as good as before


def test_what_a_task_raises_ends_the_work(engine):
    with pytest.raises(InputError, match="task 0 does not like it"):
        list(map(refuse, [0], on=engine))


def test_an_error_that_cannot_be_sent_is_still_told(other_process):
    with pytest.raises(Exception, match=r"cannot be sent|cannot pickle"):
        list(map(refuse_oddly, [0], on=other_process))


def test_a_killed_worker_changes_nothing_but_the_time(other_process, tmp_path):
    logs = [tmp_path / "a", tmp_path / "b"]
    assert [position for position, _ in sorted(map(Dying(2), logs, on=other_process))] == [0, 1]
    assert [len(log.read_text().splitlines()) for log in logs] == [3, 3]


def test_a_task_that_kills_every_worker_is_given_up(other_process, tmp_path):
    log = tmp_path / "log"
    [(_, lost)] = map_with_failures(Dying(10**6), [log], on=other_process)
    assert isinstance(lost, TaskFailed)
    assert f"it crashed {RETRIES + 1} workers" in lost.why
    assert len(log.read_text().splitlines()) == RETRIES + 1
    with pytest.raises(InputError, match="failed: it crashed"):
        list(map(Dying(10**6), [log], on=other_process))


def test_a_task_over_its_time_is_given_up_and_no_other(other_process):
    found = dict(map_with_failures(hang, [0.1, 600.0, 0.2], on=other_process, limit=4.0))
    assert (found[0], found[2]) == (0.1, 0.2)
    assert found[1] == TaskFailed("it took more than 4 seconds")


def test_so_is_one_that_never_comes_back_to_the_interpreter(other_process, monkeypatch):
    monkeypatch.setattr(cluster, "GRACE_SECONDS", 1.0)
    [(_, lost)] = map_with_failures(hang_in_c, [10**9], on=other_process, limit=2.0)
    assert lost == TaskFailed("it took more than 2 seconds")


class DiesLate:
    """Its worker is killed after so many seconds, the first time."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, seconds: float) -> float:
        time.sleep(abs(seconds))
        if seconds < 0 and not self.log.exists():
            self.log.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return seconds


def test_the_time_that_a_task_waits_for_a_worker_does_not_count(other_process, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "GRACE_SECONDS", 1.0)
    found = dict(map_with_failures(DiesLate(tmp_path / "log"), [3.0, 3.0, -2.5], on=other_process, limit=4.0))
    assert found == {0: 3.0, 1: 3.0, 2: -2.5}


def test_the_function_travels_once(other_process, tmp_path):
    heavy = Heavy(tmp_path / "loads")
    assert sorted(map(heavy, range(12), on=other_process)) == [(i, i) for i in range(12)]
    loads = (tmp_path / "loads").read_text().splitlines()
    assert len(loads) == len(set(loads)) < 12  # once for each worker, not for each task


class Heavy:
    """Says in which process it is unpickled."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        with self.log.open("a") as file:
            file.write(f"{os.getpid()}\n")

    def __call__(self, x: int) -> int:
        time.sleep(0.05)
        return x


# Addresses -------------------------------------------------------------------------------------------


def test_a_script_that_begins_at_once_is_told_the_way_out(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from normgrowth.engine import map\n"
        "from normgrowth.engine.processes import Processes\n"
        "print(list(map(abs, [-1], on=Processes(1))))\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode
    assert 'if __name__ == "__main__":' in ran.stderr.splitlines()[-1]
    script.write_text(script.read_text().replace("print", 'if __name__ == "__main__":\n    print'))
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout == "[(0, 1)]\n"


def test_workers_that_cannot_import_the_script_are_not_started_again(tmp_path):
    """A script that works only once, such as one that writes a folder: the first failed worker ends the work."""
    script, imports = tmp_path / "script.py", tmp_path / "imports"
    script.write_text(
        "from pathlib import Path\n"
        f"imports = Path({str(imports)!r})\n"
        "imports.open('a').write('x')\n"
        "assert imports.stat().st_size == 1, 'made before'\n"
        "from normgrowth.engine import map\n"
        "from normgrowth.engine.processes import Processes\n"
        "print(list(map(abs, [-1, -2, -3], on=Processes(1))))\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode
    assert "AssertionError: made before" in ran.stderr
    assert 'if __name__ == "__main__":' in ran.stderr.splitlines()[-1]
    assert imports.stat().st_size == 2


def test_an_address_is_for_ray():
    with pytest.raises(InputError, match="requires --engine ray"), chosen("local", "127.0.0.1:6379"):
        pass


@pytest.mark.parametrize("address", ["nonsense", "host:", ":123", "host:port", "127.0.0.1:99999999999"])
def test_what_is_no_address_is_said_at_once(address):
    with pytest.raises(InputError, match=f"--ray-address {address}"):
        Cluster(address)


def test_an_address_where_nothing_listens_is_said_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(InputError, match=f"--ray-address 127.0.0.1:{port}: cannot connect"):
        Cluster(f"127.0.0.1:{port}")
    assert time.monotonic() - start < 10


def test_an_address_where_something_else_listens_is_said_in_time(monkeypatch):
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 8.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(InputError, match=f"--ray-address 127.0.0.1:{port}: "):
            Cluster(f"127.0.0.1:{port}")


# A cluster that someone else started ----------------------------------------------------------------

TOKEN = "0123456789abcdef" * 4
JOIN = """
import sys
from normgrowth.engine import map
from normgrowth.engine.ray_cluster import Cluster
from normgrowth.errors import InputError
try:
    print(sorted(map(abs, [-3, 2], on=Cluster(sys.argv[1]))))
except InputError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A cluster whose workers find another version of the package first; its address and that version's folder."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "normgrowth-0.0.1.dist-info").mkdir()
    (folder / "normgrowth-0.0.1.dist-info" / "METADATA").write_text("Name: normgrowth\nVersion: 0.0.1\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray = Path(sys.executable).with_name("ray")
    begin = [ray, "start", "--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false", "--block"]
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
    }
    with (folder / "log").open("w") as log:
        head = subprocess.Popen(begin, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(600):
            if "Ray runtime started" in (folder / "log").read_text():
                break
            assert head.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield f"127.0.0.1:{port}", folder
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        head.wait()


def joined(address, **environment):
    own = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN} | environment
    return subprocess.run(
        [sys.executable, "-c", JOIN, address], env=own, capture_output=True, text=True
    ).stdout


@pytest.mark.slow
def test_a_running_cluster_is_joined(head):
    address, folder = head
    assert joined(address, PYTHONPATH=str(folder)).splitlines() == ["[(0, 3), (1, 2)]"]


@pytest.mark.slow
def test_a_machine_with_another_version_is_named(head):
    said = joined(head[0])
    assert "has normgrowth 0.0.1; every machine of a cluster needs normgrowth" in said
    assert len(said.splitlines()) == 1


def test_a_machine_with_other_code_of_the_same_version_is_named():
    task = pickle.dumps(1)
    function = pickle.dumps(abs)
    same = cluster._runner(version("normgrowth"), code_digest())(function, task, None, 1.0)
    assert (same[0], pickle.loads(same[1])) == ("done", 1)
    kind, reason = cluster._runner(version("normgrowth"), "another digest")(function, task, None, 1.0)
    assert kind == "unfit"
    assert "has different code" in reason


class TwoWords(Exception):
    """Can be packed, but not made again from its line."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def refuse_with_two_words(_: int) -> None:
    raise TwoWords("not", "this")


def test_an_error_that_cannot_be_made_again_arrives_by_its_line():
    run = cluster._runner(version("normgrowth"), code_digest())
    kind, sent = run(pickle.dumps(refuse_with_two_words), pickle.dumps(1), None, 1.0)
    assert kind == "raised"
    assert str(pickle.loads(sent)) == "TwoWords: not this"


@pytest.mark.slow
def test_a_cluster_that_asks_for_a_token_is_said_to(head):
    said = joined(head[0], RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN="")
    assert f"--ray-address {head[0]}: the cluster requires its token" in said
    assert TOKEN not in said
