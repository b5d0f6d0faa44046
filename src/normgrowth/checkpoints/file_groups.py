"""Which files of a folder form one checkpoint. The rules are the same on disk, web servers, buckets and the hub."""

import json
import re
from collections.abc import Callable, Iterable, Sequence, Set

from normgrowth.checkpoints.formats.registry import FORMATS, PICKLED, format_of_name, may_hold_weights
from normgrowth.checkpoints.steps import as_step, explicit_step
from normgrowth.errors import InputError

NO_WEIGHTS_FOLDER = re.compile(r"^(\.|optim|train$|__pycache__)", re.IGNORECASE)
TRAINER_STATE = "trainer_state.json"
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.")
_BEST_FIRST = (
    (".safetensors", ".safetensors.index.json"),
    (".bin", ".bin.index.json"),
    *PICKLED[1:],
    ".index",
)
_DEPTH = 6  # runs/name/lightning_logs/version_0/checkpoints/last.ckpt
# Other files that trainers save with the weights; they can be larger than the weights.
_NOT_WEIGHTS = re.compile(
    r"^(scheduler|lr_sched|rng_state|random_states|training_args|scaler|sampler|dataloader|train\.pt|rank_?\d"
    r"|zero_pp_rank)|(^|[-_.])optim(s|i[sz]ers?)?([-_.\d]|$)",
    re.IGNORECASE,
)


def is_trainer_state(name: str) -> bool:
    """Whether a file with this name has optimizer, scheduler, data loader or per-process state."""
    return _NOT_WEIGHTS.search(name) is not None


def group_files(
    names: Sequence[str],
    *,
    format_of: Callable[[str], str | None],
    shards_of: Callable[[str], Set[str]],
    show: Callable[[str], str],
) -> list[tuple[str, str]]:
    """Files of a folder that are each a checkpoint or the index of one, with their formats."""
    found: list[tuple[str, str]] = []
    shards: set[str] = set()
    for name in names:
        if (format := format_of_name(name, ())) and FORMATS[format].is_index:
            found.append((name, format))
            shards |= shards_of(name)
    for name in names:
        if name in shards or name.startswith(".") or is_trainer_state(name):
            continue
        if may_hold_weights(name) and (format := format_of(name)) is not None:
            if _SHARD.search(name):
                raise InputError(
                    f"{show(name)}: a shard of a checkpoint that no index (*.index.json) in this folder lists"
                )
            found.append((name, format))
    # Folders often hold the same weights several times: as PyTorch pickle, consolidated, averaged, in half precision.
    for usual in ("model.safetensors", "pytorch_model.bin"):
        if any(name.startswith(usual) for name, _ in found):
            return [
                (name, format)
                for name, format in found
                if name.startswith(usual) or explicit_step(name) is not None
            ]
    return found


def is_generic(name: str) -> bool:
    """Whether all checkpoints of a program have this file name, so only the folder's name can have the step."""
    return name.startswith(("model.safetensors", "pytorch_model", "consolidated", "model_state", "mp_rank"))


def of_best_format(names: Iterable[str]) -> list[str]:
    """The files of the best format, for a folder that holds one checkpoint."""
    names = sorted(name for name in names if not is_trainer_state(name))
    weights = [name for name in names if format_of_name(name, names)]
    for ends in _BEST_FIRST:
        if best := [name for name in weights if name.endswith(ends)]:
            data = tuple(f"{name.removesuffix('index')}data-" for name in best if name.endswith(".index"))
            return [name for name in names if name in best or name.startswith(data)]
    return names


def goes_deeper(folder: str, depth: int, found: Sequence[tuple[str, str]]) -> bool:
    """Whether to search the subfolders of a folder that has these files and formats.

    Subfolders of a distributed checkpoint, or of the folder of one step with its weights, are part of that checkpoint.
    """
    is_step = explicit_step(folder) is not None and any(is_generic(name) for name, _ in found)
    return depth < _DEPTH and not is_step and not any(format == "distributed" for _, format in found)


def step_of_trainer(state: bytes) -> int | None:
    try:
        return as_step(json.loads(state)["global_step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
