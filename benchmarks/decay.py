"""Make docs/decay.md: where the norm grows over learning rate and weight decay (the paper's Figure 6).

python benchmarks/decay.py train NAME ... --data CORPORA --runs DIR     train or resume these grids
python benchmarks/decay.py pages                                        make pictures and tables from the records

Without a name, all GRIDS are trained: about an hour on two cores. `train` runs `normgrowth sweep` with the settings
below and stores its records in docs/records/decay.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.dynamics.equilibrium import stationary_decay
from normgrowth.lab.build import corpus_of, new_model
from normgrowth.lab.cells.axis import LEARNING_RATE, WEIGHT_DECAY, Axis
from normgrowth.lab.cells.cell import SQUARE
from normgrowth.lab.settings import TrainSettings, preset
from normgrowth.sweep import sweep
from normgrowth.tracking.tensor_sums import local, tensor_sums
from normgrowth.tracking.tracked_parameters import watch

KEPT = Path(__file__).parent.parent / "docs" / "records" / "decay"
PAPER = KEPT / "paper.json"  # λ* of the paper's own model, which depends only on its initial weights
DEFAULT = Axis(
    "weight_decay", (0.01,)
)  # PyTorch's default for AdamW, which the claim is about; no row of the grid has this value


@dataclass(frozen=True)
class Plan:
    folder: str  # grids with the same folder share cells
    y: Axis
    x: Axis = LEARNING_RATE
    settings: dict[str, Any] = field(default_factory=dict)


# Plain SGD learns with clipped gradients, and at larger rates.
SGD: dict[str, Any] = {"optimizer": "sgd", "clip": 1.0}
GRIDS = {
    "adamw": Plan("adamw", WEIGHT_DECAY),
    "adamw-default": Plan("adamw", DEFAULT),
    "sgd": Plan("sgd", Axis.spaced("weight_decay", 1e-6, 1e-2, 20), Axis.spaced("lr", 1e-2, 10, 20), SGD),
}


def train(name: str, data: Path, runs: Path) -> None:
    start = time.monotonic()

    def tell(done: int, total: int, last: str) -> None:
        minutes = (time.monotonic() - start) / 60
        print(f"{name}: {done} of {total} cells, {minutes:.1f} min, {last}", flush=True)

    plan = GRIDS[name]
    settings = preset("tiny", "wikitext-2", **plan.settings)
    found = sweep(settings, runs / plan.folder, x=plan.x, y=plan.y, data=data, progress=tell)
    found.write(KEPT / name)


def paper_sized(data: Path) -> None:
    """Return λ* of the paper's model, from its norm at PyTorch's initialization."""
    settings = TrainSettings(corpus="wikitext-2")
    model = new_model(settings, corpus_of(settings, data))
    weights = [local(tensor) for tensor in watch(model, Selection(settings.include)).tensors]
    numel = sum(tensor.numel() for tensor in weights)
    norm = float(tensor_sums(weights)[:, SQUARE].sum().sqrt())
    edge = stationary_decay(norm, "adamw", lr=1e-3, numel=numel) / 1e-3
    KEPT.mkdir(parents=True, exist_ok=True)
    facts = {"norm_start": norm, "numel": numel, "edge_over_lr": edge}
    PAPER.write_text(json.dumps(facts, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("train", "pages"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--data", type=Path, help="folder that holds wikitext-2")
    parser.add_argument("--runs", type=Path, help="folder of the sweeps")
    arguments = parser.parse_args()
    if arguments.what == "train":
        if arguments.data is None or arguments.runs is None:
            sys.exit("--data and --runs say where the corpus and the sweeps are")
        paper_sized(arguments.data)
        for name in arguments.names or GRIDS:
            train(name, arguments.data, arguments.runs)
    import decay_pages

    decay_pages.write(KEPT)


if __name__ == "__main__":
    main()
