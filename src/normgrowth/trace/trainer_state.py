"""Read the learning rates that the Trainer of transformers saves next to its checkpoints. No code in them is run.

trainer_state.json contains the logged rates. The entry at step s is the rate of the update that led to step s, which
is η(s − 1) in `normgrowth.schedules`. scheduler.pt contains the rate of the next update, η(s).
"""

from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from normgrowth.checkpoints.formats.pickled.pickle_values import Entries, MalformedPickle
from normgrowth.checkpoints.formats.torch_file import open_torch_file
from normgrowth.errors import InputError, SchemaError
from normgrowth.schedules import Schedule, recorded
from normgrowth.serialization.json_types import read_json

STATE, SCHEDULER = "trainer_state.json", "scheduler.pt"
MOST_BYTES = 2**28  # larger logs are not read


@dataclass(frozen=True)
class TrainerState:
    """The fields of trainer_state.json that are used."""

    global_step: int = 0
    log_history: list[dict[str, Any]] = field(default_factory=list)


def recorded_schedule(source: object) -> Schedule | None:
    """Return the learning rates of a local folder of checkpoints; None if it has fewer than two."""
    folder = Path(source) if isinstance(source, str | Path) else None
    if folder is None or not folder.is_dir():
        return None
    rates: dict[int, float] = {}
    for path in folder.glob(f"*/{SCHEDULER}"):
        rates |= _of_scheduler(path)
    states = [state for path in folder.glob(f"*/{STATE}") if (state := _read_state(path)) is not None]
    for state in sorted(states, key=lambda state: state.global_step):
        for row in state.log_history:
            step, rate = row.get("step"), row.get("learning_rate")
            if isinstance(step, int) and isinstance(rate, float | int):
                rates[step - 1] = float(rate)
    rates = {step: rate for step, rate in rates.items() if step >= 0 and isfinite(rate) and rate >= 0}
    return recorded(rates) if len(rates) > 1 else None


def _read_state(path: Path) -> TrainerState | None:
    try:
        return read_json(path, TrainerState) if path.stat().st_size <= MOST_BYTES else None
    except (SchemaError, OSError):
        return None  # not written by the Trainer


def _of_scheduler(path: Path) -> dict[int, float]:
    try:
        with open_torch_file(path) as file:
            value = file.pickled.value
    except (MalformedPickle, InputError, OSError):
        return {}
    if type(value) is not Entries:
        return {}
    known = {key: said for key, said in zip(value[::2], value[1::2], strict=True) if type(key) is str}
    step, rates = known.get("last_epoch"), known.get("_last_lr")
    if type(step) is int and type(rates) is list and rates and type(rates[0]) is float:
        return {step: rates[0]}
    return {}
