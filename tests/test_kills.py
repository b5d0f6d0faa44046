"""Fifty random kills: whatever moment a command is killed at, the same command ends with the same result.

Real processes, ended by SIGKILL at seeded times of their work, then started again in the same folder. The result is
compared with that of a run that nobody disturbed: bit for bit, apart from times.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from own_folders import SHAPE
from safetensors.torch import load_file
from synthetic_series import walk, write_series

from normgrowth import Records
from normgrowth.results import load
from normgrowth.stored_result import StoredResult

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
NORMGROWTH = [sys.executable, "-m", "normgrowth"]
# When it was, that it was resumed, and what was left to do then.
APART = ("time", "seconds", "notes", "together", "provenance", "stages")
IN_A_ROW = 4  # kills of one folder before it is let to end


@dataclass(frozen=True)
class Job:
    """What is run on a folder, how often it is killed, and what its result is."""

    command: Callable[[Path, Path], list[str]]  # of a shared folder of inputs, and the output folder
    kills: int
    records: str = "."
    files: tuple[str, ...] = ()
    # Kill a worker, recognized by this part of its command line, instead of the command, which has to end well then.
    worker: str = ""


def trace(inputs: Path, out: Path) -> list[str]:
    series = inputs / "series"
    if not series.exists():
        write_series(series, walk(60, layers=4, width=128))
    return [*NORMGROWTH, "trace", str(series), "-o", str(out)]


def tracker(_: Path, out: Path) -> list[str]:
    return [sys.executable, str(HERE / "tracked_script.py"), str(out), "400"]


def train(_: Path, out: Path) -> list[str]:
    more = ["--steps", "250", "--batch", "4", "--dev-sentences", "10", "--track", "2", "--evaluate", "25"]
    return [*NORMGROWTH, "train", "dyck2", "--longest", "6", *SHAPE, *more, "--threads", "1", "-o", str(out)]


def sweep(_: Path, out: Path) -> list[str]:
    grid = ["--x", "lr=1e-3:1e-1:3", "--y", "weight_decay=1e-3:5:4", "--stack-size", "1", "--workers", "2"]
    more = ["--steps", "150", "--batch", "4", "--dev-sentences", "10"]
    return [*NORMGROWTH, "sweep", "dyck2", "--longest", "6", *SHAPE, *more, *grid, "-o", str(out)]


def sweep_on_ray(_: Path, out: Path) -> list[str]:
    """Fewer cells than locally: a Ray takes its seconds to start, which are part of every run."""
    grid = ["--x", "lr=1e-3:1e-1:3", "--y", "weight_decay=1e-3,1", "--stack-size", "1", "--workers", "2"]
    more = ["--steps", "100", "--batch", "4", "--dev-sentences", "10", "--engine", "ray"]
    return [*NORMGROWTH, "sweep", "dyck2", "--longest", "6", *SHAPE, *more, *grid, "-o", str(out)]


def reproduce(_: Path, out: Path) -> list[str]:
    return [*NORMGROWTH, "reproduce", "--only", "encoder-degree", "--workers", "1", "-o", str(out)]


JOBS = {
    "trace": Job(trace, 12),
    "tracker": Job(tracker, 10, "norms", ("model.safetensors",)),
    "train": Job(train, 10, files=("best/model.safetensors", "checkpoints/step-00000250/model.safetensors")),
    "sweep": Job(sweep, 6),
    "workers of a sweep": Job(sweep, 3, worker="spawn_main"),
    "sweep on Ray": Job(sweep_on_ray, 4),
    "Ray workers of a sweep": Job(sweep_on_ray, 3, worker="ray::run"),
    "reproduce": Job(reproduce, 2, files=("stages/theory/records.parquet",)),
}


def test_there_are_fifty():
    assert sum(job.kills for job in JOBS.values()) == 50


@pytest.mark.parametrize("name", JOBS)
def test_kills_change_nothing(name, tmp_path):
    job, chance = JOBS[name], random.Random(name)
    whole = tmp_path / "whole" / "run"
    whole.mkdir(parents=True)
    command, began = job.command(tmp_path, whole), time.monotonic()
    finish(command)
    lasts = time.monotonic() - began
    killed, tries = 0, 0
    while killed < job.kills:
        out = tmp_path / f"killed-{tries}" / "run"
        out.mkdir(parents=True)
        command = job.command(tmp_path, out)
        # A command that lost a worker goes on to its end: nothing is left to kill.
        in_a_row = 1 if job.worker else IN_A_ROW
        for _ in range(min(in_a_row, job.kills - killed)):
            tries += 1
            seconds = lasts * chance.uniform(0.4, 0.95)
            hit = kill_worker(command, out, job.worker) if job.worker else kill(command, seconds)
            killed += hit
            if not hit:  # it ended before: nothing is left here, and the machine is faster than it was
                lasts *= 0.8
                break
        finish(command)
        assert_same(job, out, whole)
        assert tries < 4 * job.kills  # most have to hit


def start(command: list[str]) -> "subprocess.Popen[bytes]":
    paths = [str(Path(__file__).parents[1] / "src"), str(HERE)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(command: list[str]) -> None:
    with start(command) as process:
        said = process.communicate(timeout=300)[1].decode()
        assert process.returncode == 0, said


def kill(command: list[str], seconds: float) -> bool:
    """Whether it was still running. Its workers are killed with it, as where a machine goes down."""
    with start(command) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            below = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for child in below:
                if child.is_running():
                    child.kill()
            process.wait()
            return True
        assert process.returncode == 0
        return False


def kill_worker(command: list[str], out: Path, name: str) -> bool:
    """One worker of a command that then has to go on: as soon as a first cell is done, so that others are under way."""
    with start(command) as process:
        while process.poll() is None:
            below = psutil.Process(process.pid).children(recursive=True)
            workers = [child for child in below if name in _command_line(child)]
            if workers and any((out / "cells").glob("*.json")):
                workers[0].kill()
                break
            time.sleep(0.05)
        else:
            return False
        said = process.communicate(timeout=300)[1].decode()
        assert process.returncode == 0, said
        return True


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return ""


def assert_same(job: Job, out: Path, whole: Path) -> None:
    stored = [load(folder / job.records).stored for folder in (out, whole)]
    assert provenance(stored[0]) == provenance(stored[1])
    ours, theirs = (one.records for one in stored)
    assert rows(ours).keys() == rows(theirs).keys()
    np.testing.assert_array_equal(list(rows(ours).values()), list(rows(theirs).values()))
    for file in job.files:
        if file.endswith(".parquet"):
            assert (out / file).read_bytes() == (whole / file).read_bytes()
            continue
        ours, theirs = (load_file(folder / file) for folder in (out, whole))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours), file


def rows(records: Records) -> dict[tuple[object, ...], float]:
    names = ("run", "step", "level", "name", "layer", "role", "reference", "scale", "quantity")
    found = {tuple(row.get(name) for name in names): row["value"] for row in records.table.to_pylist()}
    assert len(found) == len(records)
    return {key: value for key, value in sorted(found.items(), key=str) if key[-1] not in APART}


def provenance(stored: StoredResult) -> str:
    return json.dumps(
        {key: value for key, value in stored.fields.items() if key not in APART}, sort_keys=True
    )
