"""TensorFlow checkpoints, of both kinds that are about; what was assigned is the reference.

Those that need TensorFlow are slow (its import alone takes seconds) and skip where it is missing.
"""

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normgrowth.checkpoints.checkpoint import STORAGE, decode
from normgrowth.checkpoints.formats.tensorflow import TABLE_END, is_tensorflow_index, read_tensorflow
from normgrowth.checkpoints.series import open_source
from normgrowth.errors import InputError

QUERY = "encoder/block_000/layer_000/SelfAttention/q"


@pytest.fixture(scope="module")
def tf() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's dependencies, about each other
        return pytest.importorskip(
            "tensorflow", reason='needs TensorFlow: pip install "normgrowth[tensorflow]"'
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
    """By objects: a model, its optimiser after a step, and a counter. And the model."""
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
    """Named by the model, also where TensorFlow names them by the optimiser that lists them."""
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
    assert others  # moments, the learning rate, the optimiser's own counter
    assert all(name.startswith("optimizer/") for name in others)
    assert (alone.step, both.step, everything.step) == (None, 1, 77)


@pytest.mark.slow
def test_slots_of_objects(tf: Any, tmp_path: Path) -> None:
    """As TensorFlow 2 had them before Keras 3: beside the variable, with the optimiser in the name."""
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
def test_paths_that_tensorflow_takes_for_patterns(copied: Path, tmp_path: Path) -> None:
    odd = tmp_path / "run[1]"
    odd.mkdir()
    for file in copied.parent.glob(f"{copied.stem}*"):
        shutil.copy(file, odd)
    assert "rename" in message_of(odd / copied.name)


@pytest.mark.slow
def test_quietly(t5: Path) -> None:
    """Nothing is said on import, and the environment is left as it was."""
    code = (
        "import os; from pathlib import Path; before = dict(os.environ)\n"
        "from normgrowth.checkpoints.formats.tensorflow import read_tensorflow\n"
        f"read_tensorflow(Path({str(t5)!r})); assert dict(os.environ) == before"
    )
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# What needs no TensorFlow.


@pytest.fixture
def unopened(tmp_path: Path) -> Path:
    (tmp_path / "ck-1.index").write_bytes(bytes(100) + TABLE_END)
    (tmp_path / "ck-1.data-00000-of-00002").write_bytes(b"")
    (tmp_path / "ck-1.data-00001-of-00002").write_bytes(b"")
    return tmp_path / "ck-1.index"


def test_the_index_is_told_by_content(unopened: Path, tmp_path: Path) -> None:
    assert is_tensorflow_index(unopened)
    assert not is_tensorflow_index(tmp_path / "none.index")
    assert not is_tensorflow_index(tmp_path / "ck-1.data-00000-of-00002")
    unopened.write_bytes(TABLE_END + bytes(1))
    assert not is_tensorflow_index(unopened)
    (tmp_path / "other.index").write_bytes(TABLE_END)  # a table, but with no data beside it
    assert not is_tensorflow_index(tmp_path / "other.index")


def test_missing_data(unopened: Path, tmp_path: Path) -> None:
    (tmp_path / "ck-1.data-00001-of-00002").unlink()
    assert "ck-1.data-00001-of-00002 is missing" in message_of(unopened)
    (tmp_path / "ck-1.data-00000-of-00002").unlink()
    assert "is missing" in message_of(unopened)
    assert "no such file" in message_of(tmp_path / "none")


def test_without_tensorflow(unopened: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert 'pip install "normgrowth[tensorflow]"' in message_of(unopened)
    assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ


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
