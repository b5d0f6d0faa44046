"""The command line as a person meets it: tables, JSON, exit codes, one clear line for bad input."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from command_line import run
from safetensors.torch import save_file
from synthetic_series import counted, tiny_state, walk, write_series

from normgrowth.cli.main import main
from normgrowth.records import Records


@pytest.fixture
def series(tmp_path):
    return write_series(tmp_path / "series", walk(4))


def test_trace_prints_a_table_and_writes_records(series, tmp_path, capsys):
    code, out, err = run(capsys, "trace", series, "-o", tmp_path / "out")
    assert code == 0
    assert err == ""
    assert "layer.0" in out
    assert "layer.1" in out
    norm = Records.read(tmp_path / "out").series("norm")[1]
    assert norm[0] == pytest.approx((counted(walk(1)[0]) ** 2).sum() ** 0.5)
    assert f"{norm[-1]:.3f}"[:5] in out


def test_trace_json_is_json_and_nothing_else(series, capsys):
    code, out, _ = run(capsys, "trace", series, "--json", "--lags", "1,2")
    assert code == 0
    content = json.loads(out)
    rows = [row for row in content["records"] if row["quantity"] == "norm" and row["level"] == "model"]
    assert [row["step"] for row in rows] == [0, 100, 200, 300]
    assert content["lags"] == [1, 2]


def test_names_shows_the_reading_of_every_tensor(series, capsys):
    code, out, _ = run(capsys, "parameters", series)
    assert code == 0
    assert "c_attn" in out
    code, out, _ = run(capsys, "parameters", series, "--json", "--exclude", r"\.h\.0\.")
    rows = {row["name"]: row for row in json.loads(out)["parameters"]}
    assert set(rows) == set(tiny_state())
    assert rows["transformer.h.1.attn.c_attn.weight"]["role"] == "attention.qkv"
    assert rows["transformer.h.1.attn.c_attn.weight"]["counted"]
    assert not rows["transformer.h.0.attn.c_attn.weight"]["counted"]
    assert not rows["transformer.wte.weight"]["counted"]


def test_totals_of_names_are_of_parameters_alone(tmp_path, capsys):
    """Slots, masks and a tied head, by storage or as a copy, are listed apart."""
    state = tiny_state()
    state |= {f"optimizer.state.{name}.exp_avg": tensor.clone() for name, tensor in tiny_state().items()}
    state["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
    for name, head in {"copy.safetensors": "clone", "shared.pt": "same"}.items():
        embedding = state["transformer.wte.weight"]
        state["lm_head.weight"] = embedding.clone() if head == "clone" else embedding
        (save_file if head == "clone" else torch.save)(state, tmp_path / name)
        code, out, _ = run(capsys, "parameters", tmp_path / name, "--include", "all")
        assert code == 0
        assert "11 of 11 tensors are counted, with 1,192 of 1,192 parameters" in out
        for apart in (
            "12 tensors of optimizer",
            "1 buffers, 16",
            "1 additional names of tied parameters, 88",
        ):
            assert apart in out
        rows = json.loads(run(capsys, "parameters", tmp_path / name, "--json")[1])["parameters"]
        kinds = {row["name"]: row["kind"] for row in rows}
        assert kinds["lm_head.weight"] == "tied"
        assert sorted(kinds.values()).count("parameter") == 11


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trace", "x", "--lags", "1,b"], "invalid integer 'b' in '1,b' (example: 1,10,100)"),
        (["trace", "x", "--memory", "5X"], "invalid size '5X' (examples: 512M, 2G)"),
        (["trace", "x", "--memory", "0"], "invalid size '0'"),
        (["trace", "x", "--memory", "-1"], "invalid size '-1'"),
        (["trace", "x", "--workers", "many"], "invalid integer 'many'"),
        (["trace", "x", "--workers", "0"], "must be >= 1, got 0"),
        (["trace", "x", "--tokens-per-step", "1e"], "invalid number '1e'"),
        (["fit", "x", "--seed", "1.5"], "invalid integer '1.5'"),
        (["fit", "x", "--confidence", "high"], "invalid number 'high'"),
        (["dynamics", "x", "--betas", "0.9"], "invalid pair of numbers '0.9' (example: 0.9,0.999)"),
        (["watch", "x", "--every", "often"], "invalid number 'often'"),
        (["saturation", "x", "--random-init", "-1"], "must be >= 0, got -1"),
        (["heads", "x", "--seed", "-1"], "must be >= 0, got -1"),
    ],
)
def test_a_wrong_value_of_an_option_is_named(capsys, arguments, said):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    err = capsys.readouterr().err
    assert said in err
    assert " _" not in err.splitlines()[-1]


@pytest.mark.parametrize("every", ["inf", "nan", "0", "-1"])
def test_seconds_between_two_looks_are_finite(tmp_path, capsys, every):
    code, _, err = run(capsys, "watch", tmp_path, "--every", every)
    assert code == 2
    assert "--every must be" in err


def test_compare_and_figures(series, tmp_path, capsys):
    other = write_series(tmp_path / "other", walk(4, seed=5))
    run(capsys, "trace", series, "-o", tmp_path / "a")
    run(capsys, "trace", other, "-o", tmp_path / "b")
    assert run(capsys, "compare", tmp_path / "a", tmp_path / "a")[0] == 0
    code, out, _ = run(capsys, "compare", tmp_path / "a", tmp_path / "b")
    assert code == 1
    assert "layer.1" in out
    code, out, _ = run(capsys, "compare", tmp_path / "a", tmp_path / "b", "--json")
    assert code == 1
    assert json.loads(out)
    code, out, _ = run(capsys, "plot", tmp_path / "a", "--formats", "png")
    assert code == 0
    for path in out.split():
        assert Path(path).read_bytes().startswith(b"\x89PNG")


def test_version_help_and_no_command(capsys):
    assert run(capsys, "--version")[0] == 0
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "trace" in out
    assert run(capsys)[0] == 2
    assert run(capsys, "trace")[0] == 2


# --- bad input: one line that names the file, exit code 2, earlier results intact ----------------


def truncated(folder):
    path = folder / "step_300.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    return path


def header_too_long(folder):
    path = folder / "step_300.safetensors"
    path.write_bytes((1 << 40).to_bytes(8, "little") + path.read_bytes()[8:])
    return path


def not_json(folder):
    path = folder / "step_300.safetensors"
    path.write_bytes((9).to_bytes(8, "little") + b"{nothing}")
    return path


def empty_file(folder):
    path = folder / "step_300.safetensors"
    path.write_bytes(b"")
    return path


def hostile_pickle(folder):
    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {folder / 'it-ran'}",)

    torch.save({"x": Hostile(), "w": torch.ones(3)}, folder / "step_400.pt")
    return folder / "step_400.pt"


def unknown_class(folder):
    import argparse

    torch.save({"model": walk(1)[0], "args": argparse.Namespace()}, folder / "step_400.pt")
    return folder / "step_400.pt"


def index_outside(folder):
    (folder / "step_400").mkdir()
    index = folder / "step_400" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../step_300.safetensors"}}))
    return index


def missing_shard(folder):
    (folder / "step_400").mkdir()
    index = folder / "step_400" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    return index


def hostile_metadata(folder):
    import pickle

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {folder / 'it-ran'}",)

    (folder / "step_400").mkdir()
    (folder / "step_400" / ".metadata").write_bytes(pickle.dumps(Hostile()))
    (folder / "step_400" / "__0_0.distcp").write_bytes(b"x")
    return folder / "step_400"


def no_tensors(folder):
    save_file({}, folder / "step_400.safetensors")
    return folder / "step_400.safetensors"


def changed_shape(folder):
    state = walk(4)[-1]
    state["transformer.h.0.attn.c_attn.weight"] = torch.ones(3, 3)
    save_file(state, folder / "step_400.safetensors")
    return folder / "step_400.safetensors"


def nan_weights(folder):
    state = walk(4)[-1]
    state["transformer.h.0.attn.c_attn.weight"][0, 0] = float("nan")
    save_file(state, folder / "step_400.safetensors")
    return folder / "step_400.safetensors"


def strange_dtype(folder):
    state = walk(4)[-1]
    state["transformer.h.0.attn.c_attn.weight"] = torch.ones(8, 24, dtype=torch.complex64)
    save_file(state, folder / "step_400.safetensors")
    return folder / "step_400.safetensors"


def strange_dtype_everywhere(folder):
    for step in range(4):
        state = walk(4)[step]
        state["transformer.h.0.attn.c_attn.weight"] = torch.ones(8, 24, dtype=torch.complex64)
        save_file(state, folder / f"step_{step * 100}.safetensors")
    return folder / "step_0.safetensors"


DAMAGE = [
    truncated, header_too_long, not_json, empty_file, hostile_pickle, index_outside, missing_shard,
    hostile_metadata, no_tensors, changed_shape, nan_weights, strange_dtype, strange_dtype_everywhere,
]  # fmt: skip


def test_an_unknown_class_next_to_the_weights_is_a_note(series, tmp_path, capsys):
    culprit = unknown_class(series)
    for command in (("trace", series, "-o", tmp_path / "out"), ("parameters", culprit), ("lint", series)):
        _, _, err = run(capsys, *command)
        (line,) = [line for line in err.splitlines() if "argparse.Namespace" in line]
        assert str(culprit) in line
    assert Records.read(tmp_path / "out").distinct("step")[-1] == 400


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_bad_checkpoints_are_one_line_and_lose_nothing(series, tmp_path, capsys, damage):
    out = tmp_path / "out"
    assert run(capsys, "trace", series, "-o", out)[0] == 0
    before = (out / "records.parquet").read_bytes()
    culprit = damage(series)
    code, _, err = run(capsys, "trace", series, "-o", out)
    assert code == (0 if damage is nan_weights else 2)  # those are measured, with a warning
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("normgrowth: ")
    assert str(culprit) in lines[0]
    assert not (series / "it-ran").exists()
    if damage is nan_weights:
        assert list(Records.read(out).series("nonfinite")[1]) == [0, 0, 0, 0, 1]
    else:
        assert (out / "records.parquet").read_bytes() == before


def test_one_checkpoint_only(tmp_path, capsys):
    single = write_series(tmp_path / "one", walk(1))
    code, out, err = run(capsys, "trace", single, "-o", tmp_path / "out")
    assert code == 0
    assert "only one checkpoint" in err
    assert len(err.splitlines()) == 1
    assert len(Records.read(tmp_path / "out"))
    assert "layer.0" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["trace", "{tmp}/missing"],
        ["trace", "{tmp}/empty"],
        ["parameters", "{tmp}/empty"],
        ["trace", "{series}", "--select", "("],
        ["trace", "{series}", "--exclude", "["],
        ["trace", "{series}", "--lags", "0"],
        ["compare", "{tmp}/empty", "{tmp}/empty"],
        ["plot", "{tmp}/missing"],
        ["plot", "{series}", "--formats", "gif"],
        ["trace", "hf://"],
        ["trace", "{series}", "--tokens-per-step", "nan"],
        ["trace", "{series}", "-o", ""],
    ],
)
def test_bad_arguments_are_one_line(series, tmp_path, capsys, arguments):
    (tmp_path / "empty").mkdir()
    filled = [a.format(tmp=tmp_path, series=series) for a in arguments]
    code, _, err = run(capsys, *filled)
    assert code == 2
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in err


def test_names_with_control_characters_do_not_reach_the_terminal(tmp_path, capsys):
    state = walk(1)[0]
    state["transformer.h.0.\x1b[31mred\nline.weight"] = torch.ones(2)
    for i in range(2):
        save_file(state, tmp_path / f"step_{i}.safetensors")
    for command in (["parameters", tmp_path], ["trace", tmp_path, "--include", "all"]):
        _, out, err = run(capsys, *command)
        assert "\x1b[31m" not in out + err


def test_paths_and_names_that_are_no_valid_text(tmp_path, capsys):
    """File systems take any bytes; records and terminals take text."""
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    write_series(Path(odd) / "series", walk(2))
    result = subprocess.run(
        [sys.executable, "-m", "normgrowth", "trace", f"{odd}/series", "-o", f"{odd}/out"],
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert Records.read(f"{odd}/out").series("norm")[1][0] > 0


def test_an_output_that_takes_nothing(series):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    for command in (["trace", str(series), "--json"], ["--help"]):
        with open("/dev/full", "w") as full:
            result = subprocess.run(
                [sys.executable, "-m", "normgrowth", *command],
                stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
        assert result.returncode == 2
        assert len(result.stderr.splitlines()) == 1, result.stderr


def test_a_pipe_that_its_reader_has_closed(series):
    """As in `normgrowth trace --help | head -1`."""
    for command in (["trace", str(series), "--json"], ["--help"], ["trace", "--help"], ["--version"]):
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run(
            [sys.executable, "-m", "normgrowth", *command],
            stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        os.close(writer)
        assert (result.returncode, result.stderr) == (0, "")


def test_a_sidecar_that_is_no_sidecar(series, tmp_path, capsys):
    run(capsys, "trace", series, "-o", tmp_path / "out")
    for text in ("[]", "null", "{", ""):
        (tmp_path / "out" / "records.json").write_text(text)
        code, _, err = run(capsys, "compare", tmp_path / "out", tmp_path / "out")
        assert code == 2
        assert "records.json" in err
        assert len(err.splitlines()) == 1


def test_another_series_needs_overwrite(series, tmp_path, capsys):
    out, other = tmp_path / "out", write_series(tmp_path / "other", walk(4, seed=30))
    assert run(capsys, "trace", series, "-o", out)[0] == 0
    before = (out / "records.parquet").read_bytes()
    code, _, err = run(capsys, "trace", other, "-o", out)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert all(said in err for said in (str(series), str(other), "--overwrite"))
    assert (out / "records.parquet").read_bytes() == before
    assert run(capsys, "trace", other, "-o", out, "--overwrite")[0] == 0
    assert (out / "records.parquet").read_bytes() != before


@pytest.mark.parametrize(
    ("command", "keeps"),
    [
        (["trace", "x"], True),
        (["train", "dyck1"], True),
        (["saturation", "x", "--config", "c"], True),
        (["saturation", "x"], False),
        (["heads", "x"], False),
        (["scaling", "x"], False),
    ],
)
def test_an_interrupted_command_says_what_it_keeps(tmp_path, capsys, monkeypatch, command, keeps):
    from normgrowth.cli.main import command_of

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(command_of(command[0])), "run", interrupt)
    code, _, err = run(capsys, *command, "-o", tmp_path)
    assert code == 130
    assert ("are kept in" in err) is keeps


# --- the disk -----------------------------------------------------------------------------------


def test_an_output_that_is_a_file(series, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    code, _, err = run(capsys, "trace", series, "-o", tmp_path / "file")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_that_may_not_grow(series, tmp_path, capsys):
    """A limit on file sizes makes every write fail as a full disk does."""
    out = tmp_path / "out"
    assert run(capsys, "trace", series, "-o", out)[0] == 0
    before = (out / "records.parquet").read_bytes()
    write_series(series, walk(6))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    result = subprocess.run(
        [sys.executable, "-m", "normgrowth", "trace", str(series), "-o", str(out)],
        capture_output=True, text=True, check=False, preexec_fn=limit,
    )  # fmt: skip
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert str(out) in result.stderr
    assert (out / "records.parquet").read_bytes() == before
    assert not list(out.rglob("*.part"))


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 64 kB, where this machine lets us mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this machine does not allow mounting a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk(small_disk, series, tmp_path, capsys):
    write_series(series, walk(30))
    code, _, err = run(capsys, "trace", series, "-o", small_disk / "out")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "No space left" in err
    kept = list((small_disk / "out" / "moments").glob("step-*.parquet"))
    assert kept, "what was measured before the disk was full is kept"


def test_a_read_only_disk(small_disk, series, capsys):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    code, _, err = run(capsys, "trace", series, "-o", small_disk / "out")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert str(small_disk) in err


def test_two_traces_into_one_folder(series, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(capsys, "trace", series, "-o", out)[0] == 0
    holder = subprocess.Popen(
        [sys.executable, "-c", f"""
import sys, time
from filelock import FileLock
with FileLock({str(out / '.lock')!r}):
    print("held", flush=True)
    time.sleep(60)
"""], stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert holder.stdout.readline() == "held\n"
    try:
        code, _, err = run(capsys, "trace", series, "-o", out)
    finally:
        holder.kill()
        holder.communicate()
    assert code == 2
    assert "another command is writing here" in err
    assert len(err.splitlines()) == 1
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:  # a killed holder leaves no lock behind
        if run(capsys, "trace", series, "-o", out)[0] == 0:
            break
    else:
        pytest.fail("the lock outlived its holder")
