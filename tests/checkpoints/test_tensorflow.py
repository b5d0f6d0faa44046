"""Checkpoints that TensorFlow wrote; what was assigned, and what TensorFlow itself reads, are the reference.

They are slow (its import alone takes seconds) and skip where it is missing. `test_tensor_bundles.py` needs none.
"""

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_server import BucketServer
from bundle_files import t5_state, with_slots, write_bundle
from range_server import RangeServer

from normgrowth.checkpoints.checkpoint import STORAGE, decode
from normgrowth.checkpoints.formats.tensorflow.reader import is_tensorflow_index, read_tensorflow
from normgrowth.checkpoints.series import open_source
from normgrowth.errors import InputError

QUERY = "encoder/block_000/layer_000/SelfAttention/q"


@pytest.fixture(scope="module")
def tf() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's dependencies, about each other
        return pytest.importorskip(
            "tensorflow", reason='needs TensorFlow: pip install "normgrowth[tensorflow-tests]"'
        )


@pytest.fixture(scope="module")
def assigned() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        QUERY: rng.normal(size=(4, 6)).astype("f4"),
        f"{QUERY}_slot_vr": rng.normal(size=4).astype("f4"),
        "shared/embedding": rng.normal(size=(7, 3)).astype("f4"),
        "wide": rng.normal(size=(2, 2)),
        "half": rng.normal(size=5).astype("f2"),
        "count": np.arange(3, dtype="i4"),
    }


@pytest.fixture(scope="module")
def t5(tf: Any, assigned: dict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the paper's: variables by name with their slots, one of them in parts, and `global_step`."""
    folder = tmp_path_factory.mktemp("t5")
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        parts: list[tuple[Any, np.ndarray]] = []
        for name, values in assigned.items():
            cut = v1.fixed_size_partitioner(3) if name == "shared/embedding" else None
            dtype = tf.as_dtype(values.dtype)
            variable = v1.get_variable(name, values.shape, dtype, partitioner=cut)
            pieces = [variable] if cut is None else list(variable)
            ends = np.cumsum([piece.shape[0] for piece in pieces])
            parts += zip(pieces, np.split(values, ends[:-1]), strict=True)
        v1.get_variable("brain", initializer=tf.cast(tf.constant([1.5, -2.0, 3.1415926]), tf.bfloat16))
        v1.get_variable("words", initializer=tf.constant(["not a number"]))
        v1.get_variable("phase", initializer=tf.constant([1 + 2j]))
        step = v1.train.get_or_create_global_step()
        session.run(v1.global_variables_initializer())
        session.run([variable.assign(values) for variable, values in parts])
        session.run(step.assign(524288))
        v1.train.Saver(sharded=True).save(session, str(folder / "model.ckpt"), global_step=524288)
    return folder / "model.ckpt-524288.index"


@pytest.fixture(scope="module")
def keras(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """By objects: a model, its optimizer after a step, and a counter. And the model."""
    folder = tmp_path_factory.mktemp("keras")
    layers = [tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3), tf.keras.layers.Dense(2, use_bias=False)]
    model = tf.keras.Sequential(layers)
    optimizer = tf.keras.optimizers.Adam()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones((2, 4))) ** 2)
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )
    tf.train.Checkpoint(model=model).write(str(folder / "model"))
    tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(folder / "both"))
    step = tf.Variable(77, dtype=tf.int64)
    tf.train.Checkpoint(model=model, optimizer=optimizer, step=step).save(str(folder / "all"))
    return folder, model


@pytest.fixture
def copied(t5: Path, tmp_path: Path) -> Path:
    for file in t5.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / t5.name


def read_all(path: Path) -> None:
    checkpoint = read_tensorflow(path)
    for name, tensor in checkpoint.tensors.items():
        if tensor.dtype in STORAGE:
            checkpoint.dense(name)


def message_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.slow
def test_the_papers_kind(t5: Path, assigned: dict) -> None:
    assert is_tensorflow_index(t5)
    checkpoint = read_tensorflow(t5)
    assert checkpoint.step == 524288
    assert set(checkpoint.tensors) == {*assigned, "brain", "phase", "global_step"}
    for name, values in assigned.items():
        tensor = checkpoint.tensors[name]
        assert tensor.shape == values.shape
        assert checkpoint.dense(name).tobytes() == values.tobytes()
        assert np.array_equal(decode(tensor.dtype, checkpoint.dense(name)), values.reshape(-1).astype("f8"))
    assert checkpoint.tensors["brain"].dtype == "BF16"
    assert decode("BF16", checkpoint.dense("brain")).tolist() == [1.5, -2.0, 3.140625]
    assert checkpoint.tensors["half"].dtype == "F16"
    assert checkpoint.tensors["phase"].dtype == "tensorflow.complex128"  # in the index, not to be read


@pytest.mark.slow
def test_the_prefix_will_do(t5: Path) -> None:
    prefix = t5.with_suffix("")
    assert list(read_tensorflow(prefix).tensors) == list(read_tensorflow(t5).tensors)
    assert read_tensorflow(prefix).label == str(prefix)


@pytest.mark.slow
def test_a_folder_of_the_same_name_does_not_matter(copied: Path) -> None:
    copied.with_suffix("").mkdir()
    assert read_tensorflow(copied).step == 524288


@pytest.mark.slow
def test_variables_of_objects(keras: tuple[Path, Any]) -> None:
    """Named by the model, also where TensorFlow names them by the optimizer that lists them."""
    folder, model = keras
    alone = read_tensorflow(folder / "model.index")
    both, everything = read_tensorflow(folder / "both.index"), read_tensorflow(folder / "all-1.index")
    assert len(alone.tensors) == 3
    assert all(name.startswith("model/") for name in alone.tensors)
    assert {name for name in everything.tensors if name.startswith("model/")} == set(alone.tensors)
    weights = {w.numpy().tobytes() for w in model.weights}
    for checkpoint in (alone, both, everything):
        assert {checkpoint.dense(name).tobytes() for name in alone.tensors} == weights
    others = set(everything.tensors) - set(alone.tensors) - {"step"}
    assert others  # moments, the learning rate, the optimizer's own counter
    assert all(name.startswith("optimizer/") for name in others)
    assert (alone.step, both.step, everything.step) == (None, 1, 77)


@pytest.mark.slow
def test_slots_of_objects(tf: Any, tmp_path: Path) -> None:
    """As TensorFlow 2 had them before Keras 3: beside the variable, with the optimizer in the name."""
    value, slot = "w/.ATTRIBUTES/VARIABLE_VALUE", "w/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE"
    names = [value, slot, "optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE"]
    tensors = [tf.ones(2), tf.zeros(2), tf.constant(5, tf.int64)]
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "ckpt"), tensor_names=names, shape_and_slices=[""] * 3, tensors=tensors
    )
    checkpoint = read_tensorflow(tmp_path / "ckpt.index")
    assert set(checkpoint.tensors) == {"w", "w/.OPTIMIZER_SLOT/optimizer/m", "optimizer/iter"}
    assert checkpoint.step == 5


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.95])
def test_truncated_index(copied: Path, kept: float) -> None:
    os.truncate(copied, int(kept * copied.stat().st_size))
    assert not is_tensorflow_index(copied)
    assert copied.name in message_of(copied)


@pytest.mark.slow
def test_damaged_index(copied: Path) -> None:
    raw = bytearray(copied.read_bytes())
    raw[20] ^= 255
    copied.write_bytes(raw)
    assert copied.name in message_of(copied)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9])
def test_truncated_data(copied: Path, kept: float) -> None:
    data = copied.with_name(f"{copied.stem}.data-00000-of-00001")
    os.truncate(data, int(kept * data.stat().st_size))
    assert data.name in message_of(copied)


@pytest.mark.slow
def test_damaged_data(copied: Path) -> None:
    data = copied.with_name(f"{copied.stem}.data-00000-of-00001")
    raw = bytearray(data.read_bytes())
    raw[10] ^= 255
    data.write_bytes(raw)
    assert data.name in message_of(copied)


@pytest.mark.slow
def test_a_path_that_looks_like_a_pattern(copied: Path, tmp_path: Path) -> None:
    odd = tmp_path / "run[1]*"
    odd.mkdir()
    for file in copied.parent.glob(f"{copied.stem}*"):
        shutil.copy(file, odd)
    assert read_tensorflow(odd / copied.name).step == 524288


def read_by_tensorflow(tf: Any, prefix: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: np.asarray(reader.get_tensor(name)) for name in reader.get_variable_to_shape_map()}


def equal_to_tensorflow(tf: Any, prefix: Path) -> int:
    """Compare every tensor that can be measured; how many there are."""
    checkpoint, expected = read_tensorflow(prefix), read_by_tensorflow(tf, prefix)
    readable = {name for name, tensor in checkpoint.tensors.items() if tensor.dtype in STORAGE}
    for name in readable:
        assert checkpoint.tensors[name].shape == expected[name].shape
        assert checkpoint.dense(name).tobytes() == expected[name].tobytes()
    return len(readable)


DTYPES = """float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint64 uint32 uint16 uint8
bool complex64 complex128 qint8 quint8 qint16 quint16 qint32 int4 uint4 string"""


@pytest.mark.slow
def test_every_dtype_is_bit_equal_to_tensorflows_reader(tf: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {}
    for name in DTYPES.split():
        dtype = tf.as_dtype(name)
        if name == "string":
            tensors[name] = tf.constant(["a", "bc"])
        elif name.startswith("float8"):
            tensors[name] = tf.cast(tf.constant(rng.normal(size=(3, 5))), dtype)
        elif dtype.is_floating:
            raw = tf.constant(rng.integers(0, 256, (3, 5 * dtype.size), dtype=np.uint8))
            tensors[name] = tf.bitcast(tf.reshape(raw, (3, 5, dtype.size)) if dtype.size > 1 else raw, dtype)
        elif name.startswith(("int", "uint", "bool", "complex")):
            tensors[name] = tf.cast(tf.constant(rng.integers(0, 2, (3, 5))), dtype)
        else:
            tensors[name] = tf.bitcast(
                tf.constant(rng.integers(0, 9, 4).astype(name.removeprefix("q").replace("q", ""))), dtype
            )
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "all"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tensors[name] for name in names],
    )
    checkpoint = read_tensorflow(tmp_path / "all")
    assert set(checkpoint.tensors) == {*names} - {"string"}
    assert equal_to_tensorflow(tf, tmp_path / "all") == 15
    unreadable = {n: t.dtype for n, t in checkpoint.tensors.items() if t.dtype not in STORAGE}
    assert unreadable == {name: f"tensorflow.{name}" for name in unreadable}
    assert len(unreadable) == 9


@pytest.mark.slow
def test_several_shards_and_parts(tf: Any, t5: Path, tmp_path: Path) -> None:
    """Devices save a file each, which TensorFlow merges: data files keep their numbers."""
    rng = np.random.default_rng(1)
    for shard in range(3):
        names = [f"shard{shard}/{i}" for i in range(60)]
        tensors = [tf.constant(rng.normal(size=(shard + 1, i % 7))) for i in range(60)]
        slices = [""] * 60
        names.append("whole")  # one variable of 300 x 2, of which each file has a hundred rows
        tensors.append(tf.constant(rng.normal(size=(100, 2))))
        slices.append(f"300 2 {100 * shard},100:-")
        tf.raw_ops.SaveV2(
            prefix=str(tmp_path / f"part{shard}"),
            tensor_names=names,
            shape_and_slices=slices,
            tensors=tensors,
        )
    parts = [str(tmp_path / f"part{shard}") for shard in range(3)]
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(tmp_path / "merged"))
    assert len(list(tmp_path.glob("merged.data-*-of-00003"))) == 3
    assert equal_to_tensorflow(tf, tmp_path / "merged") == 181
    assert len(read_tensorflow(tmp_path / "merged").pieces("whole")) == 3
    assert equal_to_tensorflow(tf, t5.with_suffix("")) == 8


@pytest.mark.slow
def test_tensorflow_reads_what_tests_write(tf: Any, tmp_path: Path) -> None:
    """Or the tests without TensorFlow would be about another format."""
    state = with_slots(t5_state(), 5000)
    write_bundle(tmp_path / "ours", {**state, "words": b"some text"}, shards=2)
    found = read_by_tensorflow(tf, tmp_path / "ours")
    assert found.pop("words") == b"some text"
    assert {name: values.tobytes() for name, values in found.items()} == {
        name: np.asarray(values).tobytes() for name, values in state.items()
    }


@pytest.mark.slow
def test_the_same_from_a_web_server_and_a_bucket(tf: Any, t5: Path, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("obstore")
    near = read_tensorflow(t5)
    folder = tmp_path / "t5-data" / "base"
    shutil.copytree(t5.parent, folder)
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with RangeServer(folder) as server, BucketServer(tmp_path) as bucket:
        monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.endpoint)
        for address in (server.url, "gs://t5-data/base", "s3://t5-data/base"):
            far = open_source(address).entries[0].open()
            assert far.is_remote
            assert far.step == 524288
            assert far.tensors == near.tensors
            for name, tensor in near.tensors.items():
                if tensor.dtype in STORAGE:
                    assert far.dense(name).tobytes() == near.dense(name).tobytes()


@pytest.mark.slow
def test_the_step_of_the_optimizer_beats_the_count_of_saves(tf: Any, tmp_path: Path) -> None:
    """`tf.train.Checkpoint.save` numbers its files 1, 2, 3; the step is `optimizer/iter`, or a `global_step`."""
    weight = tf.Variable(tf.ones((4, 4)))
    optimizer = tf.keras.optimizers.SGD(0.1)
    saved = tf.train.Checkpoint(dense=weight, optimizer=optimizer)
    for _ in range(3):
        for _ in range(50):
            optimizer.apply_gradients([(tf.ones((4, 4)), weight)])
        saved.save(str(tmp_path / "ckpt"))
    assert sorted(path.name for path in tmp_path.glob("*.index")) == [f"ckpt-{n}.index" for n in (1, 2, 3)]
    series = open_source(tmp_path)
    assert [entry.step for entry in series.entries] == [50, 100, 150]
    assert {entry.step_origin for entry in series.entries} == {"stored"}
    assert any("step 150" in note for note in series.notes)
    assert [entry.step for entry in open_source(tmp_path / "ckpt-2.index").entries] == [100]
    for path in tmp_path.glob("ckpt-*"):  # Keras names by the epoch, which is a guess
        path.rename(path.with_name(path.name.replace("ckpt-", "cp-000")))
    assert [entry.step for entry in open_source(tmp_path).entries] == [50, 100, 150]
