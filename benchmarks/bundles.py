"""Compare normgrowth's reader of TensorFlow checkpoints with TensorFlow's own; compute the bytes of T5-base.

python benchmarks/bundles.py [--megabytes N]     measure; write bundles.json and the tables of docs/t5_checkpoints.md
python benchmarks/bundles.py pages               make the tables again

TensorFlow writes a checkpoint of matrices and slots. Both readers then load the matrices and verify their checksums,
alternating, in fresh processes. The benchmark times import, open and read. The bytes of T5-base follow from the shapes
of its variables and the rules by which `trace` counts parameters.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pages import DOCS, fill, table

from normgrowth.checkpoints.checkpoint import Tensor
from normgrowth.checkpoints.parameters.selection import Selection

RECORD = Path(__file__).with_name("bundles.json")
PAGE = DOCS / "t5_checkpoints.md"
ROUNDS = 5
CHECKPOINTS = 104  # of the paper's series
GIGABIT = 125e6  # bytes per second

WRITE = """
import sys, numpy as np, tensorflow as tf
rng, megabytes = np.random.default_rng(0), int(sys.argv[2])
values = {f"encoder/block_{i:03}/layer_001/DenseReluDense/wi/kernel": rng.normal(size=(1024, 2048)).astype("f4")
          for i in range(megabytes // 8)}
slots = {f"{name}_slot_m": value for name, value in values.items()}
tensors = {**values, **slots, "global_step": np.int64(1)}
tf.raw_ops.SaveV2(prefix=sys.argv[1], tensor_names=list(tensors), shape_and_slices=[""] * len(tensors),
                  tensors=[tf.constant(value) for value in tensors.values()])
"""
OURS = """
import json, sys, time
from pathlib import Path
begun = time.perf_counter()
from normgrowth.checkpoints.formats.tensorflow.reader import read_tensorflow
import numpy as np
imported = time.perf_counter()
checkpoint = read_tensorflow(Path(sys.argv[1]))
opened = time.perf_counter()
names = [name for name in checkpoint.tensors if name.endswith("kernel")]
size = sum(np.array(checkpoint.dense(name)).nbytes for name in names)  # a copy, as TensorFlow makes one
print(json.dumps([imported - begun, opened - imported, time.perf_counter() - opened, size]))
"""
THEIRS = """
import json, sys, time
begun = time.perf_counter()
import tensorflow as tf
imported = time.perf_counter()
reader = tf.train.load_checkpoint(sys.argv[1])
names = [name for name in reader.get_variable_to_shape_map() if name.endswith("kernel")]
opened = time.perf_counter()
size = sum(reader.get_tensor(name).nbytes for name in names)
print(json.dumps([imported - begun, opened - imported, time.perf_counter() - opened, size]))
"""


def run(code: str, *arguments: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout) if done.stdout else []


def measure(megabytes: int) -> dict[str, Any]:
    """Return the median seconds to import, to open and to read, and the bytes read per second."""
    found: dict[str, list[list[float]]] = {"normgrowth": [], "TensorFlow": []}
    with tempfile.TemporaryDirectory() as folder:
        prefix = f"{folder}/model.ckpt-1"
        run(WRITE, prefix, str(megabytes))
        for _ in range(ROUNDS):
            found["normgrowth"].append(run(OURS, prefix))
            found["TensorFlow"].append(run(THEIRS, prefix))
    return {
        "megabytes": megabytes,
        "rounds": ROUNDS,
        "readers": {
            name: {
                "import": statistics.median(row[0] for row in rows),
                "open": statistics.median(row[1] for row in rows),
                "bytes per second": statistics.median(row[3] / row[2] for row in rows),
            }
            for name, rows in found.items()
        },
    }


def t5_base() -> dict[str, Tensor]:
    """Return the variables of T5-base as its checkpoints store them, with Adafactor's slots."""
    width, inner, hidden, heads, layers = 768, 768, 3072, 12, 12
    shapes: dict[str, tuple[int, ...]] = {"shared/embedding": (32128, width)}
    for stack, kinds in (("encoder", ("SelfAttention",)), ("decoder", ("SelfAttention", "EncDecAttention"))):
        for i in range(layers):
            for j, kind in enumerate(kinds):
                part = f"{stack}/block_{i:03}/layer_{j:03}"
                shapes |= {f"{part}/{kind}/{name}": (width, inner) for name in "qkv"}
                shapes |= {f"{part}/{kind}/o": (inner, width), f"{part}/layer_norm/scale": (width,)}
                if i == j == 0:
                    shapes[f"{part}/{kind}/relative_attention_bias"] = (heads, 32)
            part = f"{stack}/block_{i:03}/layer_{len(kinds):03}"
            shapes |= {
                f"{part}/DenseReluDense/wi/kernel": (width, hidden),
                f"{part}/DenseReluDense/wo/kernel": (hidden, width),
                f"{part}/layer_norm/scale": (width,),
            }
        shapes[f"{stack}/final_layer_norm/scale"] = (width,)
    for name, shape in list(shapes.items()):
        if len(shape) > 1 and min(shape) >= 128:  # Adafactor keeps means of rows and columns
            shapes |= {f"{name}_slot_vr": shape[:1], f"{name}_slot_vc": shape[1:]}
        else:
            shapes[f"{name}_slot_v"] = shape
    return {name: Tensor("F32", shape) for name, shape in shapes.items()}


def counted_bytes(include: str) -> int:
    tensors = t5_base()
    return sum(
        tensors[name].nbytes for name, one in Selection(include).readings(tensors).items() if one.counted
    )


def pages(record: dict[str, Any]) -> None:
    whole = sum(tensor.nbytes for tensor in t5_base().values())
    rows = []
    for what, size in (
        ("encoder and decoder (`--include encoder,decoder`, the default)", counted_bytes("encoder,decoder")),
        ("encoder only (`--include encoder`)", counted_bytes("encoder")),
        ("the whole files, for comparison", whole),
    ):
        minutes = CHECKPOINTS * size / GIGABIT / 60
        rows.append(
            (what, f"{size / 1e6:.0f} MB", f"{CHECKPOINTS * size / 1e9:.1f} GB", f"{minutes:.0f} min")
        )
    heads = ("what is read", "one checkpoint", f"{CHECKPOINTS} checkpoints", "at 1 Gbit/s")
    readers = [
        (
            name,
            f"{own['import']:.2f} s",
            f"{1e3 * own['open']:.1f} ms",
            f"{own['bytes per second'] / 1e9:.1f} GB/s",
        )
        for name, own in record["readers"].items()
    ]
    made = {"bytes": table(heads, rows), "readers": table(("reader", "import", "open", "read"), readers)}
    fill(PAGE, made)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("measure", "pages"), default="measure")
    parser.add_argument("--megabytes", type=int, default=400)
    arguments = parser.parse_args()
    if arguments.what == "measure":
        RECORD.write_text(json.dumps(measure(arguments.megabytes), indent=1) + "\n")
    pages(json.loads(RECORD.read_text()))


if __name__ == "__main__":
    main()
