"""Find the settings of the optimizers that differ between two runs. Learning rates and decay are stages of a step."""

from collections.abc import Iterable

from normgrowth.compare.result import Setting
from normgrowth.compare.step_stages import RunValues
from normgrowth.schedules import OptimizerGroup


def differing_settings(a: RunValues, b: RunValues) -> tuple[Setting, ...]:
    """Return the settings whose values differ, the class first. Settings that one run did not record are unknown."""
    mine, theirs = _values(a.optimizer_groups), _values(b.optimizer_groups)
    found = [Setting("class", a.optimizer, b.optimizer)] if a.optimizer and b.optimizer else []
    found += [Setting(name, _text(mine[name]), _text(theirs[name])) for name in mine if name in theirs]
    return tuple(one for one in found if one.a != one.b)


def _values(groups: Iterable[OptimizerGroup]) -> dict[str, set[object]]:
    """Return the values of each setting over all groups."""
    found: dict[str, set[object]] = {}
    for group in groups:
        for name, value in {"betas": group.betas, "momentum": group.momentum, **group.options}.items():
            if value is not None:
                found.setdefault(name, set()).add(value)
    return found


def _text(values: set[object]) -> str:
    return " and ".join(sorted(f"{value:g}" if type(value) is float else str(value) for value in values))
