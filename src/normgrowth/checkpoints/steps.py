"""The training step of a checkpoint, read from what it is called.

``checkpoint-500``, ``step_1000``, ``global_step12``, ``epoch=3-step=1200.ckpt``, ``iter_0000500``,
``step1000-tokens4B``, ``ckpt_10k``, ``step_1.5k``, ``model.ckpt-524288``, ``ep0-ba100``: a number behind a
word that means step is sure; a bare number or one behind "epoch" is a guess, taken only where nothing
better is known. A number behind "checkpoint" or "ckpt" is a step for some (the Trainer, TensorFlow 1) and a count of
saves or epochs for others (TensorFlow 2, fairseq): a step that is stored inside wins over it.
"""

import re

LARGEST_STEP = 1 << 62  # anything above is no step, and would not fit into the records

_COUNTERS = r"checkpoints?|ckpt|chkpt"
_WORDS = rf"global[-_]?step|steps?|iter(?:ation)?s?|updates?|batch|ba|{_COUNTERS}"
_COUNT = r"0*(\d{1,18}(?:\.\d+(?=[km]))?)(k|m)?(?![a-z0-9])(?!\.\d)"
_SURE = re.compile(rf"(?<![a-z])(?:{_WORDS})[-_=.]?{_COUNT}", re.IGNORECASE)
_FAIRSEQ = re.compile(r"^checkpoint_\d+_(\d{1,18})$")  # epoch, then update
_NUMBER_FIRST = re.compile(
    r"(?<![a-z0-9.])0*(\d{1,18})(k|m)?[-_]?(?:steps?|iters?|updates?)(?![a-z])", re.IGNORECASE
)
_EPOCH = re.compile(r"(?<![a-z])(?:epochs?|ep)[-_=.]?0*(\d{1,18})(?![a-z0-9])", re.IGNORECASE)
_BARE = re.compile(r"(?<![a-z0-9.])0*(\d{1,18})(k|m)?(?![a-z0-9])(?!\.\d)", re.IGNORECASE)
_FACTOR = {"": 1, "k": 1_000, "m": 1_000_000}


def explicit_step(name: str) -> int | None:
    """The number that the name calls a step; the most explicit word wins (step before checkpoint)."""
    if match := _FAIRSEQ.match(name):
        return int(match.group(1))
    best = _best(name)
    return None if best is None else _number(best.group(1), best.group(2))


def is_counter(name: str) -> bool:
    """Whether the number that `explicit_step` takes may count saves or epochs: ckpt-12, checkpoint_3."""
    if _FAIRSEQ.match(name) or (best := _best(name)) is None:
        return False
    return re.match(_COUNTERS, best.group(0), re.IGNORECASE) is not None and not best.group(2)


def _best(name: str) -> re.Match[str] | None:
    found = list(_SURE.finditer(name)) or list(_NUMBER_FIRST.finditer(name))
    return max(found, key=lambda match: "step" in match.group(0).lower(), default=None)


def guessed_step(name: str) -> int | None:
    """An epoch, or the last number that stands alone; better than nothing, and said to be a guess."""
    if match := _EPOCH.search(name):
        return _number(match.group(1), "")
    bare = _BARE.findall(name)
    return _number(*bare[-1]) if bare else None


def _number(digits: str, unit: str | None) -> int | None:
    step = (
        round(float(digits) * _FACTOR[(unit or "").lower()])
        if "." in digits
        else int(digits) * _FACTOR[(unit or "").lower()]
    )
    return step if step < LARGEST_STEP else None
