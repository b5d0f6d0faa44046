"""The command `sweep` on a real Ray of this machine, and what is left of it when its driver is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normgrowth.workspace import read_json_object

pytestmark = pytest.mark.slow  # a Ray takes its seconds to start

TINY = "dyck2 --longest 6 --layers 1 --width 8 --heads 2 --feedforward 8 --batch 4 --dev-sentences 5"
GRID = "--x lr=1e-3:1e-1:4 --y weight_decay=1e-2,0.1,1 --workers 2"
PATIENCE = 180.0  # seconds for a few cells, on a machine that does other things


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "normgrowth", "sweep", "-o", str(out), *TINY.split(), *GRID.split(), *more]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def ended(process: subprocess.Popen[str]) -> dict:
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    return json.loads(stdout)


def cells(out: Path) -> dict[str, dict]:
    """What each file holds, without the time that it took, and the checksum, which depends on it."""
    found = {}
    for path in (out / "cells").glob("*.json"):
        found[path.name] = read_json_object(path)
        found[path.name]["outcome"].pop("seconds")
    return found


def wait_for(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while len(list((out / "cells").glob("*.json"))) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)


def test_cells_are_those_of_the_local_engine_to_the_bit(tmp_path):
    more = ("--steps", "6", "--json")
    there = ended(start(tmp_path / "ray", *more, "--engine", "ray"))
    here = ended(start(tmp_path / "local", *more))
    assert len(cells(tmp_path / "ray")) == 12
    assert cells(tmp_path / "ray") == cells(tmp_path / "local")  # floats are written to the last digit
    assert {cell["together"] for cell in cells(tmp_path / "ray").values()} == {
        6
    }  # in two stacks, one a worker
    for made in (there, here):
        assert made["problems"] == []
    edges = [[row["value"] for row in made["records"] if row["level"] == "column"] for made in (there, here)]
    assert edges[0] == edges[1]


@pytest.mark.parametrize("engine", ["ray", "local"])
def test_a_driver_that_is_killed_repeats_nothing_when_it_is_started_again(tmp_path, engine):
    out, more = tmp_path / "sweep", ("--steps", "300", "--stack-size", "1", "--json", "--engine", engine)
    driver = start(out, *more)
    try:
        wait_for(out, 3, driver)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        for pipe in (driver.stdout, driver.stderr):
            assert pipe is not None
            pipe.close()
    kept = {path.name: path.stat() for path in (out / "cells").glob("*.json")}
    assert 3 <= len(kept) < 12
    found = ended(start(out, *more))
    assert found["cells"] == 12
    for name, before in kept.items():
        after = (out / "cells" / name).stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)  # not written again


def test_an_interrupt_in_the_midst_of_a_cell_loses_no_other(tmp_path):
    out, more = tmp_path / "sweep", ("--steps", "300", "--stack-size", "1", "--json")
    driver = start(out, *more)
    wait_for(out, 2, driver)
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to all of its processes
    stdout, stderr = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 130
    assert stdout == ""
    assert stderr == f"normgrowth: interrupted; results so far are kept in {out}\n"
    assert not (out / "records.json").exists()
    kept = cells(out)
    assert 2 <= len(kept) < 12
    assert ended(start(out, *more))["cells"] == 12
    assert kept.items() <= cells(out).items()
