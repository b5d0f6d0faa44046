"""Files that normgrowth writes, changed in type and structure: every command that reads them says so in a line.

`make test-all` draws 80 cases for each of 16 kinds of folder; `checkpoints/test_mutations.py` has the rest.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import bounded, cases
from mutations import mutated_bytes, mutated_json, mutated_table
from own_folders import KINDS, run, unsealed

from normgrowth.serialization.checksums import unseal_json
from normgrowth.tracking.log.step_file import KEY, header_length

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # Extreme numbers overflow, and fonts lack odd characters: remarks of libraries, which end nothing.
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Name of a kind -> its folder, made when it is first asked for."""
    root, made = tmp_path_factory.mktemp("own"), {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = root / name
            KINDS[name].make(made[name])
            unsealed(made[name])
        return made[name]

    return folder


def mutated(file: Path) -> st.SearchStrategy[bytes]:
    """The content of a file, changed in what it says or in its bytes."""
    content = file.read_bytes()
    if file.suffix == ".parquet":
        return st.one_of(mutated_table(pq.read_table(file)).map(as_parquet), mutated_bytes(content))
    if file.suffix == ".json":
        value = json.loads(content)
        return st.one_of(mutated_json(value).map(str.encode), mutated_bytes(content))
    if file.suffix == ".arrows":
        header = header_length(np.frombuffer(content, np.uint8))
        schema = pa.ipc.read_schema(pa.py_buffer(content[:header]))
        said = unseal_json(json.loads(schema.metadata[KEY]))
        heads = mutated_json(said).map(
            lambda text: schema.with_metadata({KEY: text}).serialize().to_pybytes() + content[header:]
        )
        return st.one_of(heads, mutated_bytes(content))
    return mutated_bytes(content)


def as_parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(table.unify_dictionaries(), sink)
    except (pa.ArrowException, NotImplementedError):  # a type that no file holds
        return b"PAR1"
    return sink.getvalue().to_pybytes()


def check(code: int, out: str, err: str) -> None:
    assert code in (0, 1, 2)
    assert "Traceback" not in err
    if code and not out:
        assert err.startswith("normgrowth: ")
        assert err.count("\n") == 1


class Content(bytes):
    """What a file is changed to. hypothesis refuses to print all of a large one."""

    def __repr__(self) -> str:
        return super().__repr__() if len(self) < 2000 else f"{len(self)} bytes, {bytes(self[:200])!r}..."


def changes(kind: str, source: Path) -> st.SearchStrategy[tuple[Path, bytes, list[str]]]:
    """A file of a folder, its changed content, and a command that reads it."""

    def of(
        patterns: list[str], commands: list[list[str]]
    ) -> st.SearchStrategy[tuple[Path, bytes, list[str]]]:
        files = sorted(path for pattern in patterns for path in source.glob(pattern))
        return st.sampled_from(files).flatmap(
            lambda file: st.tuples(st.just(file), mutated(file).map(Content), st.sampled_from(commands))
        )

    return st.one_of([of(*reader) for reader in KINDS[kind].readers])


@pytest.mark.parametrize("kind", KINDS)
def test_every_reader_answers_in_a_line(kind, folders, tmp_path_factory):
    source = folders(kind)

    @cases(usual=6, search=80)
    @given(changes(kind, source))
    def answered(changed):
        file, content, command = changed
        folder = tmp_path_factory.mktemp(kind) / kind
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("figures", "*.html"))
        (folder / file.relative_to(source)).write_bytes(content)
        with bounded():
            check(*run(*(word.format(folder) for word in command)))
        shutil.rmtree(folder.parent)

    answered()
