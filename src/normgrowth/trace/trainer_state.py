"""Read the settings that the Trainer of transformers saves next to its checkpoints. No code in them is run.

trainer_state.json contains the logged rates. The entry at step s is the rate of the update that led to step s, which
is η(s − 1) in `normgrowth.schedules`. scheduler.pt contains the rate of the next update, η(s).
optimizer.pt contains weight decay and betas of each parameter group.
"""

from dataclasses import dataclass, field
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import Any

from normgrowth.checkpoints.formats.pickled.pickle_values import Entries
from normgrowth.checkpoints.formats.torch_file import open_torch_file
from normgrowth.checkpoints.formats.torch_tensors import view_of
from normgrowth.checkpoints.local_files import read_trainer_state
from normgrowth.checkpoints.malformed import Malformed
from normgrowth.checkpoints.steps import LARGEST_STEP, explicit_step
from normgrowth.errors import InputError, SchemaError
from normgrowth.schedules import OptimizerGroup, Schedule, recorded
from normgrowth.serialization.json_types import parse_json

STATE, SCHEDULER, OPTIMIZER = "trainer_state.json", "scheduler.pt", "optimizer.pt"
LARGEST_RATE = 1e300  # an integer of JSON can be too large for a float


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
        rates |= _of_scheduler(path) if path.is_file() else {}
    logged: dict[
        int, tuple[int, float]
    ] = {}  # step -> step of the log, rate: the rate in the newest log is used
    for path in folder.glob(f"*/{STATE}"):  # one at a time in memory: each has the history of the whole run
        state = _read_state(path) or TrainerState()
        for row in state.log_history:
            step, rate = row.get("step"), row.get("learning_rate")
            if isinstance(step, int) and isinstance(rate, float | int) and abs(rate) < LARGEST_RATE:
                new = (state.global_step, float(rate))
                logged[step - 1] = max(new, logged.get(step - 1, new), key=itemgetter(0))
    rates |= {step: rate for step, (_, rate) in logged.items()}
    rates = {
        step: rate
        for step, rate in rates.items()
        if 0 <= step < LARGEST_STEP and isfinite(rate) and rate >= 0
    }
    return recorded(rates) if len(rates) > 1 else None


def recorded_groups(source: object) -> tuple[OptimizerGroup, ...]:
    """Return the parameter groups in the last optimizer.pt of a local folder of checkpoints; () without such a file.

    Files that do not say whether the decay is decoupled (older versions of torch) are ignored.
    """
    folder = Path(source) if isinstance(source, str | Path) else None
    if folder is None or not folder.is_dir():
        return ()
    files = (path for path in folder.glob(f"*/{OPTIMIZER}") if path.is_file())
    paths = [path for path in files if explicit_step(path.parent.name) is not None]
    if not paths:
        return ()
    last = max(paths, key=lambda path: explicit_step(path.parent.name) or 0)
    try:
        with open_torch_file(last) as file:
            content = _dictionary(file.pickled.value)
            sizes = _sizes(content.get("state"))
    except (Malformed, InputError, OSError):
        return ()
    groups = content.get("param_groups")
    found = [_group(_dictionary(group), sizes) for group in (groups if type(groups) is list else [])]
    return tuple(group for group in found if group is not None) if None not in found else ()


def _group(said: dict[str, Any], sizes: dict[int, int]) -> OptimizerGroup | None:
    keys = ("weight_decay", "decoupled_weight_decay", "betas", "params")
    values: list[Any] = [said.get(key) for key in keys]
    decay, decoupled, betas, members = values
    if type(decay) not in (int, float) or type(decoupled) is not bool or type(members) is not list:
        return None
    pair = betas if type(betas) in (tuple, list) and [type(one) for one in betas] == [float, float] else None
    count = sum(sizes.get(one, 0) for one in members if type(one) is int)
    return OptimizerGroup(count, float(decay), decoupled, None if pair is None else (pair[0], pair[1]))


def _sizes(state: Any) -> dict[int, int]:
    """Return the number of values of each parameter, which is that of its first moment."""
    found: dict[int, int] = {}
    for key, entry in zip(state[::2], state[1::2], strict=True) if type(state) is Entries else ():
        moment = _dictionary(entry).get("exp_avg")
        if type(key) is int and moment is not None:
            found[key] = view_of(moment).numel
    return found


def _dictionary(value: Any) -> dict[str, Any]:
    """Return the entries with text keys; {} for any other value."""
    if type(value) is not Entries:
        return {}
    return {key: said for key, said in zip(value[::2], value[1::2], strict=True) if type(key) is str}


def _read_state(path: Path) -> TrainerState | None:
    content = read_trainer_state(path)
    try:
        return None if content is None else parse_json(content, TrainerState, path)
    except SchemaError:
        return None  # not written by the Trainer


def _of_scheduler(path: Path) -> dict[int, float]:
    try:
        with open_torch_file(path) as file:
            value = file.pickled.value
    except (Malformed, InputError, OSError):
        return {}
    known = _dictionary(value)
    step, rates = known.get("last_epoch"), known.get("_last_lr")
    if type(step) is int and type(rates) is list and rates and type(rates[0]) is float:
        return {step: rates[0]}
    return {}
