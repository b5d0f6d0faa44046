"""Checkpoints that are truncated, deleted or written to while they are read: one line, and nothing measured is lost."""

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from synthetic_series import save_numpy, walk, write_series

from normgrowth import trace
from normgrowth.checkpoints.formats.safetensors import read_safetensors
from normgrowth.checkpoints.storage import bus_errors
from normgrowth.checkpoints.storage.mapped_file import FileBytes, MappedFile, opened_map
from normgrowth.errors import FileChanged, InputError
from normgrowth.records import Records
from normgrowth.trace.by_step import measure_checkpoint

NAME = "transformer.h.0.mlp.c_fc.weight"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no handler")


def sparse(path, megabytes=400):
    """A checkpoint of zeros that takes no room on disk and some time to read."""
    size = megabytes << 20
    header = json.dumps({NAME: {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + size)
    return path


def run(*arguments):
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from normgrowth.cli.main import main; raise SystemExit(main())",
            *map(str, arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def steps(records):
    return records.series("norm")[0].tolist()


@linux_only
@pytest.mark.parametrize("command", ["trace", "lint"])
def test_a_file_that_is_truncated_in_the_middle(tmp_path, command):
    folder, out = tmp_path / "run", tmp_path / "trace"
    folder.mkdir()
    for step in (0, 100, 200):
        sparse(folder / f"step_{step}.safetensors")
    victim = folder / "step_200.safetensors"
    where = ["-o", out, "--no-lint"] if command == "trace" else ["--strict"]
    process = run(command, folder, *where)
    # When its memory is mapped, it is being read.
    while process.poll() is None:
        with open(f"/proc/{process.pid}/maps") as maps:
            if victim.name in maps.read():
                os.truncate(victim, 4096)
                break
        time.sleep(0.001)
    printed, said = process.communicate(timeout=120)
    if command == "lint":  # the rest is still looked at
        assert process.returncode == 1, said
        assert "partial" in printed
        return
    assert process.returncode == 2, said
    assert victim.name in said.splitlines()[-1]
    assert "Traceback" not in said
    kept = {path.name: path.read_bytes() for path in (out / "moments").iterdir()}
    assert len(kept) == 2
    sparse(victim)
    again = run("trace", folder, "-o", out, "--no-lint")
    again.communicate(timeout=120)
    assert again.returncode == 0
    assert {name: (out / "moments" / name).read_bytes() for name in kept} == kept
    assert steps(Records.read(out)) == [0, 100, 200]


@linux_only
def test_bytes_that_are_gone_are_noticed_and_not_summed(tmp_path):
    save_numpy({NAME: np.ones(1 << 22, np.float32)}, tmp_path / "a.safetensors")
    checkpoint = read_safetensors(tmp_path / "a.safetensors")
    assert measure_checkpoint(checkpoint, [], [NAME]).square[0] == 1 << 22
    os.truncate(tmp_path / "a.safetensors", 1 << 20)
    with pytest.raises(FileChanged, match=r"a\.safetensors: was truncated"):
        measure_checkpoint(checkpoint, [], [NAME])


def test_a_file_that_is_written_to_while_it_is_read(tmp_path):
    save_numpy({NAME: np.ones(1000, np.float32)}, tmp_path / "a.safetensors")
    checkpoint = read_safetensors(tmp_path / "a.safetensors")
    measure_checkpoint(checkpoint, [], [NAME])
    content = (tmp_path / "a.safetensors").read_bytes()
    with (tmp_path / "a.safetensors").open("r+b") as file:
        file.write(content)
    with pytest.raises(FileChanged, match=r"a\.safetensors: has changed"):
        measure_checkpoint(checkpoint, [], [NAME])


def test_a_file_that_is_replaced_between_header_and_values(tmp_path):
    save_numpy({NAME: np.ones(1000, np.float32)}, tmp_path / "a.safetensors")
    checkpoint = read_safetensors(tmp_path / "a.safetensors")
    save_numpy({NAME: np.ones(1000, np.float32)}, tmp_path / "b.safetensors")
    (tmp_path / "b.safetensors").replace(tmp_path / "a.safetensors")
    with pytest.raises(FileChanged, match=r"a\.safetensors: has changed"):
        checkpoint.dense(NAME)


def test_a_file_that_is_deleted(tmp_path):
    save_numpy({NAME: np.ones(1000, np.float32)}, tmp_path / "a.safetensors")
    save_numpy({NAME: np.ones(1000, np.float32)}, tmp_path / "b.safetensors")
    mapped, unmapped = (read_safetensors(tmp_path / f"{name}.safetensors") for name in "ab")
    mapped.dense(NAME)
    for name in "ab":
        (tmp_path / f"{name}.safetensors").unlink()
    assert (
        measure_checkpoint(mapped, [], [NAME]).square[0] == 1000
    )  # what is mapped is there until it is let go
    with pytest.raises(InputError, match=r"b\.safetensors: cannot be read"):
        measure_checkpoint(unmapped, [], [NAME])


def test_checkpoints_that_disappear_during_a_trace(tmp_path):
    folder = write_series(tmp_path / "run", walk(6))
    gone = folder / "step_400.safetensors"

    def progress(done, total, label):
        if "step_300" in label:
            gone.unlink(missing_ok=True)

    with pytest.raises(InputError, match=r"step_400\.safetensors") as error:
        trace(folder, tmp_path / "out", lint=False, progress=progress)
    assert "\n" not in str(error.value)
    assert len(list((tmp_path / "out" / "moments").iterdir())) == 4
    assert steps(trace(folder, tmp_path / "out", lint=False).records) == [0, 100, 200, 300, 500]


def test_an_index_is_read_without_a_mapping(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)))
    with FileBytes(path) as file:
        assert (len(file), file[3:7], file[-2:], file[190:300]) == (
            200,
            b"\3\4\5\6",
            b"\xc6\xc7",
            bytes(range(190, 200)),
        )
        os.truncate(path, 100)
        with pytest.raises(FileChanged, match="was truncated"):
            file[50:150]
    with pytest.raises(InputError, match="missing: cannot be read"):
        FileBytes(tmp_path / "missing")


@linux_only
def test_bytes_that_are_gone_come_before_what_was_made_of_them(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 9000)

    def read():
        with opened_map(tmp_path / "file") as mapped:
            os.truncate(tmp_path / "file", 0)
            raise ValueError(f"no archive ends with {mapped.memory[8000:]!r}")

    with pytest.raises(FileChanged, match="was truncated"):
        read()


def action() -> int | None:
    now = bus_errors._Action()
    ctypes.CDLL(None).sigaction(signal.SIGBUS, None, ctypes.byref(now))
    return now.handler


@linux_only
def test_the_handler_is_there_only_while_files_are_mapped(tmp_path):
    (tmp_path / "file").write_bytes(bytes(5000))
    before = action()
    one, other = MappedFile(tmp_path / "file"), MappedFile(tmp_path / "file")
    during = action()
    assert during != before
    del one
    assert action() == during
    array = other.array
    del other
    assert action() == during  # the array keeps the memory mapped
    del array
    assert action() == before


@linux_only
def test_many_threads_and_many_files(tmp_path):
    """Each file that shrinks is marked, and no other."""
    for i in range(40):
        (tmp_path / f"{i}").write_bytes(bytes(1 << 16))
    files = [MappedFile(tmp_path / f"{i}") for i in range(40)]
    for i in range(0, 40, 2):
        os.truncate(tmp_path / f"{i}", 0)
    threads = [
        threading.Thread(target=lambda file=file: file.array.sum()) for file in files for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    marked = []
    for i, file in enumerate(files):
        try:
            file.check_whole()
        except FileChanged:
            marked.append(i)
    assert marked == list(range(0, 40, 2))


@linux_only
def test_another_bus_error_is_not_swallowed(tmp_path):
    (tmp_path / "ours").write_bytes(bytes(5000))
    (tmp_path / "theirs").write_bytes(bytes(5000))
    script = f"""
import mmap, os
from pathlib import Path
from normgrowth.checkpoints.storage.mapped_file import MappedFile
ours = MappedFile(Path({str(tmp_path / "ours")!r}))
with open({str(tmp_path / "theirs")!r}, "r+b") as file:
    theirs = mmap.mmap(file.fileno(), 0)
    file.truncate(0)
theirs[4096]
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == -signal.SIGBUS
