"""Find the common steps and tensors of two runs, independent of prefixes in the names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from normgrowth.checkpoints.checkpoint import without_wrappers
from normgrowth.compare.step_stages import Item, RunValues

SAME_NORM = 1e-6  # relative: tensors with different names match if their first norms agree to this


@dataclass(frozen=True)
class Aligned:
    """Both runs at their common steps and items, in the same order."""

    a: RunValues
    b: RunValues
    names: list[str]
    renamed: dict[str, str]  # name in a -> another name in b
    only_a: list[str]
    only_b: list[str]
    extra: list[Item]  # the items of only_a and only_b


def aligned(a: RunValues, b: RunValues) -> Aligned:
    """Return two runs at their common steps and tensors. Renamed tensors are matched by size and first norm."""
    mine, theirs = _clean([item.name for item in a.items]), _clean([item.name for item in b.items])
    if mine.keys().isdisjoint(theirs):
        mine, theirs = _without_prefix(mine), _without_prefix(theirs)
    pairs = {name: name for name in mine if name in theirs}
    only_a = [name for name in mine if name not in theirs]
    only_b = [name for name in theirs if name not in mine]
    for name in list(only_a):
        same = [other for other in only_b if _same_tensor(a, mine[name], b, theirs[other])]
        if len(same) == 1:
            pairs[name] = same[0]
            only_a.remove(name)
            only_b.remove(same[0])
    pairs = {name: pairs[name] for name in mine if name in pairs}  # renamed tensors keep their place
    steps = np.intersect1d(a.steps, b.steps).tolist()
    return Aligned(
        a.at(steps, [mine[name] for name in pairs]),
        b.at(steps, [theirs[name] for name in pairs.values()]),
        list(pairs),
        {name: other for name, other in pairs.items() if name != other},
        only_a,
        only_b,
        [*(a.items[mine[name]] for name in only_a), *(b.items[theirs[name]] for name in only_b)],
    )


def _clean(names: Sequence[str]) -> dict[str, int]:
    """Return names without the prefixes of module wrappers -> position."""
    stored = without_wrappers(names) or {name: name for name in names}
    places = {name: i for i, name in enumerate(names)}
    return {clean: places[name] for clean, name in stored.items()}


def _without_prefix(names: Mapping[str, int]) -> dict[str, int]:
    """Return names without their common leading components, which come from an enclosing module."""
    parts = [name.split(".") for name in names]
    shared = 0
    while all(len(part) > shared + 1 and part[shared] == parts[0][shared] for part in parts):
        shared += 1
    return {".".join(part[shared:]): place for part, place in zip(parts, names.values(), strict=True)}


def _same_tensor(a: RunValues, i: int, b: RunValues, j: int) -> bool:
    """Whether two tensors are the same: they have the same size and the same norm at the first common step."""
    if a.items[i].size != b.items[j].size or not a.items[i].size:
        return False
    common = np.intersect1d(a.steps, b.steps)[:1]
    if not len(common):
        return False
    x, y = (
        run.values["weights_after"][np.searchsorted(run.steps, common[0]), place]
        for run, place in ((a, i), (b, j))
    )
    return bool(abs(x - y) <= SAME_NORM * max(x, y))
