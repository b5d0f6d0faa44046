"""An axis of a sweep: a setting of `train` and its values."""

from dataclasses import dataclass, fields
from math import log10
from typing import Any, Literal, get_args, get_origin

import numpy as np

from normgrowth.errors import InputError
from normgrowth.lab.settings import TrainSettings

MOST_CELLS = 100_000  # more are probably a typing error
KINDS = {field.name: field.type for field in fields(TrainSettings) if field.name != "corpus"}
WORDS = ((bool, "true or false"), (float, "a number"), (int, "an integer"), (str, "a string"))


@dataclass(frozen=True)
class Axis:
    """A setting of `train` and its values, in ascending order if they are numbers."""

    setting: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if self.setting not in KINDS:
            raise InputError(f"unknown setting {self.setting!r}; see `normgrowth train --help`")
        if not self.values:
            raise InputError(f"{self.setting} needs at least one value")
        object.__setattr__(self, "values", tuple(_typed(self.setting, value) for value in self.values))
        if len(set(self.values)) < len(self.values):
            raise InputError(f"{self.setting} has duplicate values")
        if self.numbers and list(self.values) != sorted(self.values):
            object.__setattr__(self, "values", tuple(sorted(self.values)))

    @property
    def numbers(self) -> bool:
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @staticmethod
    def spaced(setting: str, low: float, high: float, count: int) -> "Axis":
        """Return an axis with logarithmic spacing.

        Values are rounded, so a finer grid contains the values of a coarser one exactly. For an integer setting, such
        as layers, values are rounded to integers without duplicates.
        """
        if not (0 < low < high < float("inf")):
            raise InputError(
                f"{setting}: a logarithmic grid needs 0 < low < high, got {low:g} and {high:g}; "
                "to include 0, list the values (0,0.01,0.1)"
            )
        if not 2 <= count <= MOST_CELLS:
            raise InputError(f"{setting}: a grid needs 2 to {MOST_CELLS:,} values, got {count:,}")
        exponents = np.linspace(log10(low), log10(high), count)
        values = [float(f"{10.0**e:.6g}") for e in exponents.tolist()]
        if int in _kinds(setting):
            values = list(dict.fromkeys(map(round, values)))
        return Axis(setting, tuple(values))

    @staticmethod
    def parse(text: str, option: str = "axis") -> "Axis":
        """Parse text: "lr=1e-5:1e-1:20", "layers=1,2,4" or "kind=post_norm,usual_pre_norm". option: for errors."""
        setting, equals, values = text.partition("=")
        form = InputError(f"invalid {option} {text!r} (examples: lr=1e-5:1e-1:20, layers=1,2,4)")
        if not equals or not values:
            raise form
        setting = setting.replace("-", "_")
        try:
            if ":" in values:
                low, high, count = values.split(":")
                return Axis.spaced(setting, float(low), float(high), int(count))
            return Axis(setting, tuple(map(_value, values.split(","))))
        except InputError as error:
            raise InputError(f"{option} {text}: {error}") from error
        except ValueError as error:
            raise form from error

    def name(self, i: int) -> str:
        value = self.values[i]
        short = f"{value:g}" if isinstance(value, float) else str(value)
        return f"{self.setting}={short if not isinstance(value, float) or float(short) == value else value}"


def _kinds(setting: str) -> tuple[Any, ...]:
    kind = KINDS.get(setting)
    return (str,) if get_origin(kind) is Literal else get_args(kind) or (kind,)


def _typed(setting: str, value: Any) -> Any:
    """Return the value in the type of the setting, so that the learning rates 1 and 1.0 are the same cell."""
    kinds = _kinds(setting)
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    if type(value) in kinds:
        return value
    if float in kinds and number:
        return float(value)
    if number and float(value).is_integer() and (int in kinds or str in kinds):
        return int(value) if int in kinds else str(int(value))  # for example layers=2, track=10
    [wanted] = [word for kind, word in WORDS if kind in kinds]
    raise InputError(f"{setting} must be {wanted}, got {value!r}")


LEARNING_RATE = Axis.spaced("lr", 1e-5, 1e-1, 20)  # both axes as in the authors' code
WEIGHT_DECAY = Axis.spaced("weight_decay", 1e-5, 1e-1, 20)


def _value(text: str) -> int | float | str | bool | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)
