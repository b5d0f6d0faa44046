"""Records on disk: two files that belong together, and damage that is noticed."""

import json
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from normgrowth import InputError, Records
from normgrowth.errors import RecordsMismatch
from normgrowth.records import Block
from normgrowth.serialization.record_schema import SCHEMA
from normgrowth.stored_result import FILE, SIDECAR, StoredResult


def stored(number=0, steps=3, **fields):
    rng = np.random.default_rng(number)
    values = {"norm": rng.random((steps, 2)), "rms": rng.random((steps, 2))}
    tensors = Block("tensor", ["a", "b"], [0, None], ["query", None], range(steps), values)
    return StoredResult(Records.from_blocks("run", [tensors]), {"schema": SCHEMA, "number": number, **fields})


def records():
    return stored().records


def same(one, other):
    return one.records.table.equals(other.records.table) and one.fields == other.fields


def test_they_are_read_as_they_were_written(tmp_path):
    written = stored(1, nested={"3": [None, 0.1, float("inf")]})
    written.write(tmp_path)
    assert same(StoredResult.read(tmp_path), written)
    assert same(StoredResult.read(tmp_path), StoredResult.read(tmp_path))
    assert pq.read_table(tmp_path / FILE).equals(written.records.table)  # any reader of parquet


def test_sidecars_with_keys_of_several_kinds(tmp_path):
    StoredResult(records(), {"schema": SCHEMA, "counts": {10: 1, 9: 2, "x": 3}}).write(tmp_path)
    assert StoredResult.read(tmp_path).fields == {"schema": SCHEMA, "counts": {"10": 1, "9": 2, "x": 3}}


def test_a_mixed_pair_is_refused_and_mended_by_writing_again(tmp_path):
    stored(1).write(tmp_path)
    old = (tmp_path / SIDECAR).read_bytes()
    stored(2).write(tmp_path)
    (tmp_path / SIDECAR).write_bytes(old)  # as if killed between the two
    with pytest.raises(RecordsMismatch, match="again") as caught:
        StoredResult.read(tmp_path)
    assert caught.value.folder == tmp_path
    stored(2).write(tmp_path)
    assert same(StoredResult.read(tmp_path), stored(2))


def test_a_folder_from_before_that_is_being_replaced_is_a_mixed_pair_too(tmp_path):
    stored(1).write(tmp_path)
    (tmp_path / SIDECAR).write_text('{"number": 0}')
    with pytest.raises(RecordsMismatch):
        StoredResult.read(tmp_path)


def test_files_without_checksums_are_read(tmp_path):
    pq.write_table(stored(1).records.table, tmp_path / FILE)
    assert StoredResult.read(tmp_path).fields == {}
    (tmp_path / SIDECAR).write_text(json.dumps({"schema": SCHEMA, "number": 1}))
    assert same(StoredResult.read(tmp_path), stored(1))


def test_a_reader_never_sees_one_file_of_each(tmp_path):
    stored(0).write(tmp_path)
    ended, seen = threading.Event(), set()

    def write():
        number = 0
        while number < 60 or (len(seen) <= 5 and number < 5000):  # a busy machine may not let the reader in
            number += 1
            stored(number, steps=1 + number % 3).write(tmp_path)
            time.sleep(0.003)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not ended.is_set():
        read = StoredResult.read(tmp_path)
        number = read.fields["number"]
        assert same(read, stored(number, steps=1 + number % 3 if number else 3))
        seen.add(number)
    writer.join()
    assert len(seen) > 5


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[2])
import test_records
from normgrowth import stored_result
stored_result.write_json = lambda *_: os._exit(9)
test_records.stored(2).write(sys.argv[1])
"""


def test_a_writer_that_is_killed_between_the_two(tmp_path):
    from pathlib import Path

    stored(1).write(tmp_path)
    ended = subprocess.run([sys.executable, "-c", KILLED, tmp_path, Path(__file__).parent], check=False)
    assert ended.returncode == 9
    with pytest.raises(RecordsMismatch):
        StoredResult.read(tmp_path)
    stored(2).write(tmp_path)
    assert same(StoredResult.read(tmp_path), stored(2))


@pytest.mark.parametrize("file", [FILE, SIDECAR])
def test_flipped_bits_are_noticed(tmp_path, file):
    stored(1, notes=["one"] * 5).write(tmp_path)
    expected, whole, rng = StoredResult.read(tmp_path), (tmp_path / file).read_bytes(), random.Random(0)
    noticed = 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        (tmp_path / file).write_bytes(damaged)
        try:
            found = StoredResult.read(tmp_path)
        except InputError as error:
            noticed += len(str(error).splitlines()) == 1
        else:
            known = {name: found.fields[name] for name in expected.fields}
            assert same(StoredResult(found.records, known), expected)
    assert noticed > 180


def test_where_none_is_no_value():
    found = records().where(role=None)
    assert set(found.distinct("name")) == {"b"}
    assert len(found) == 6
    assert len(records().where(layer=None, quantity="norm")) == 3
    assert len(records().where(layer=0)) == 6


def test_no_records_joined_are_no_records():
    joined = Records.joined([])
    assert len(joined) == 0
    assert joined.table.schema.equals(records().table.schema)
    assert len(Records.joined([joined, records()])) == len(records())


def test_factors_of_the_weights_are_a_column(tmp_path):
    def block(quantity, value, **constants):
        values = {quantity: np.array([[value]])}
        return Block("model", ["model"], [None], [None], [0], values, constants=constants)

    blocks = [block("saturation", 0.1), block("saturation", 0.2, scale=1000.0)]
    StoredResult(Records.joined([Records.from_blocks("run", [one]) for one in blocks])).write(tmp_path)
    records = Records.read(tmp_path)
    assert [(row["scale"], row["value"]) for row in records.to_rows()] == [(None, 0.1), (1000, 0.2)]
    assert records.series("saturation")[1].tolist() == [0.1]
    assert records.series("saturation", scale=1000)[1].tolist() == [0.2]
    assert records.matrix("saturation", level="model", scale=1000).values.tolist() == [[0.2]]
    StoredResult(records).write(tmp_path / "again")
    assert Records.read(tmp_path / "again").table.equals(records.table)
    assert len(records.where(cell=None)) == len(records)
    assert not len(records.where(cell=1))
