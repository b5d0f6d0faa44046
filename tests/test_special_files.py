"""Pipes, devices, folders, links that lead nowhere and sparse files of 64 GiB in the place of any file that is read.

Every command ends in bounded time and memory, with a result or with one line that names the file. `make test-all`
tries more commands on each file.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from bundle_files import write_bundle
from limits import bounded
from own_folders import KINDS, run
from synthetic_series import save_file, tiny_state
from tiny_configs import tiny_config

from normgrowth.serialization.regular_files import read_regular

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # of libraries, and of series without steps
]
HUGE = 64 << 30


def to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("missing"))


def to_itself(path: Path) -> None:
    path.symlink_to(path.name)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": to_zeros,
    "folder": Path.mkdir,
    "dangling link": to_nothing,
    "circular link": to_itself,
}


def put(kind: str, path: Path) -> None:
    if kind == "huge":
        os.truncate(path, HUGE)  # sparse: the file begins as before
        return
    path.unlink()
    SPECIAL[kind](path)


# Folders of checkpoints: what they hold, and the commands that read them.

READ = [["trace", "{}"], ["lint", "{}"], ["parameters", "{}"]]


def plain(folder: Path) -> None:
    for step in (0, 100):
        (folder / f"checkpoint-{step}").mkdir(parents=True)
        save_file(tiny_state(step), folder / f"checkpoint-{step}" / "model.safetensors")
        state = json.dumps({"global_step": step})
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text(state)


def counted(folder: Path) -> None:
    """Only the trainer's state says the step."""
    for step, name in ((0, "first"), (100, "last")):
        (folder / name).mkdir(parents=True)
        torch.save(tiny_state(step), folder / name / "pytorch_model.bin")
        (folder / name / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def sharded(folder: Path) -> None:
    for step in (0, 100):
        part = folder / f"checkpoint-{step}"
        part.mkdir(parents=True)
        state = tiny_state(step)
        shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
        for i, shard in enumerate(shards):
            save_file({name: state[name] for name in list(state)[i::2]}, part / shard)
        weight_map = {name: shards[i % 2] for i, name in enumerate(state)}
        (part / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def distributed(folder: Path) -> None:
    for step in (0, 100):
        dcp.save({"model": tiny_state(step)}, checkpoint_id=folder / f"step_{step}", no_dist=True)


def bundle(folder: Path) -> None:
    folder.mkdir()
    for step in (0, 100):
        state = {name: tensor.numpy() for name, tensor in tiny_state(step).items()}
        write_bundle(folder / f"model.ckpt-{step}", state, shards=2)


def archives(folder: Path) -> None:
    """One checkpoint a file: PyTorch's formats and numpy's."""
    import numpy as np

    folder.mkdir()
    torch.save(tiny_state(0), folder / "step_0.pt")
    torch.save(tiny_state(1), folder / "step_1.pth", _use_new_zipfile_serialization=False)
    np.savez(folder / "step_2.npz", **{name: tensor.numpy() for name, tensor in tiny_state(2).items()})


CHECKPOINTS = {f.__name__: f for f in (plain, counted, sharded, distributed, bundle, archives)}


def model(folder: Path) -> None:
    """A model with its config and tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    network = AutoModel.from_config(tiny_config("bert"))
    network.save_pretrained(folder)
    words = {"[UNK]": 0, "[PAD]": 1, "the": 2, "a": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(
        folder
    )


def answers(source: Path, tmp_path: Path, file: Path, kind: str, command: list[str]) -> None:
    """The command on a copy of the folder ends in time, with a result or with a line that says why there is none."""
    folder = tmp_path / "copy" / source.name
    shutil.copytree(source, folder)
    put(kind, folder / file)
    with bounded():
        code, out, err = run(*(word.format(folder) for word in command))
    shutil.rmtree(folder.parent)
    case = f"{source.name}/{file} as a {kind}: {command[0]}: {err}"
    assert code in (0, 1, 2), case
    assert "Traceback" not in err, case
    if code == 2 and not out:
        assert err.startswith("normgrowth: "), case
        assert err.count("\n") == 1, case


def files_of(folder: Path) -> list[Path]:
    """The files that are read: of several steps, those of the last; no locks and no figures."""
    found = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    found = [path for path in found if path.suffix not in (".html", ".png", ".svg", ".lock")]
    found = [
        path
        for path in found
        if path.name != ".lock" and path.parts[0] not in ("checkpoint-0", "first", "step_0")
    ]
    alike = {(path.parent, re.sub(r"[0-9a-f]{32}|\d+", "", path.name)): path for path in found}
    return sorted({*alike.values(), *(path for path in found if "-of-" in path.name)})


KINDS_OF_FILE = [*SPECIAL, "huge"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Name of a folder -> the folder, made when it is first asked for."""
    root = tmp_path_factory.mktemp("special")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            (CHECKPOINTS | {"model": model} | {name: kind.make for name, kind in KINDS.items()})[name](
                root / name
            )
        return root / name

    return folder


@pytest.mark.parametrize("kind", KINDS_OF_FILE)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_file_of_a_checkpoint(name, kind, made, tmp_path):
    source = made(name)
    for file in files_of(source):
        answers(
            source,
            tmp_path,
            file,
            kind,
            ["parameters", "{}/*"] if name == "archives" else ["parameters", "{}"],
        )


@pytest.mark.slow
@pytest.mark.parametrize("command", ["trace", "lint"])
@pytest.mark.parametrize("kind", KINDS_OF_FILE)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_that_is_read_as_a_whole(name, kind, command, made, tmp_path):
    source = made(name)
    for file in files_of(source):
        answers(source, tmp_path, file, kind, [command, "{}/*" if name == "archives" else "{}"])


@pytest.mark.parametrize("kind", KINDS_OF_FILE)
def test_a_file_of_a_model(kind, made, tmp_path):
    source = made("model")
    for file in files_of(source):
        answers(source, tmp_path, file, kind, ["degrees", "{}"])


@pytest.mark.parametrize("kind", KINDS_OF_FILE)
def test_a_file_of_a_result(kind, made, tmp_path):
    source = made("trace")
    for file in files_of(source):
        for command in (
            ["fit", "{}", "--bootstrap", "0"],
            ["trace", str(source.with_name("series")), "-o", "{}"],
        ):
            answers(source, tmp_path, file, kind, command)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS_OF_FILE)
@pytest.mark.parametrize("name", ["trace", "tracker", "sweep", "heads"])
def test_a_result_that_is_shown(name, kind, made, tmp_path):
    source = made(name)
    for file in files_of(source):
        for command in (["report", "{}"], ["compare", "{}", "{}"], ["watch", "{}", "--once"]):
            answers(source, tmp_path, file, kind, command)


def test_a_device_is_not_read_and_a_pipe_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, tmp_path / "missing"):
        with pytest.raises(OSError, match=r".") as error:
            read_regular(path)
        assert error.value.strerror
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == read_regular(tmp_path / "file", end=b"45") == b"12345"
    assert read_regular(tmp_path / "file", end=b"xx") == b"45"
    with pytest.raises(OSError, match="5 bytes, more than 4"):
        read_regular(tmp_path / "file", 4)
