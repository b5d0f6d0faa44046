"""The training step of a checkpoint, parsed from its name.

``checkpoint-500``, ``step_1000``, ``global_step12``, ``epoch=3-step=1200.ckpt``, ``iter_0000500``,
``step1000-tokens4B``, ``ckpt_10k``, ``step_1.5k``, ``model.ckpt-524288``, ``ep0-ba100``: a number after a
word that means step is reliable. A bare number or one after "epoch" is a guess, used only if there is no better
source. A number after "checkpoint" or "ckpt" is a step for some programs (the Trainer, TensorFlow 1) and a count of
saves or epochs for others (TensorFlow 2, fairseq), so a step stored in the checkpoint takes precedence.
"""

import re

LARGEST_STEP = 1 << 62  # larger numbers are not steps, and do not fit into the records

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


def as_step(value: object) -> int | None:
    """The value if it is an integer that can be a training step."""
    return value if type(value) is int and 0 <= value < LARGEST_STEP else None


def explicit_step(name: str) -> int | None:
    """The number after a word for step in the name; "step" has precedence over words such as "checkpoint"."""
    if match := _FAIRSEQ.match(name):
        return int(match.group(1))
    best = _best(name)
    return None if best is None else _number(best.group(1), best.group(2))


def is_counter(name: str) -> bool:
    """Whether the number that `explicit_step` returns may count saves or epochs: ckpt-12, checkpoint_3."""
    if _FAIRSEQ.match(name) or (best := _best(name)) is None:
        return False
    return re.match(_COUNTERS, best.group(0), re.IGNORECASE) is not None and not best.group(2)


def _best(name: str) -> re.Match[str] | None:
    found = list(_SURE.finditer(name)) or list(_NUMBER_FIRST.finditer(name))
    return max(found, key=lambda match: "step" in match.group(0).lower(), default=None)


def guessed_step(name: str) -> int | None:
    """A guess: an epoch, or the last standalone number."""
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
