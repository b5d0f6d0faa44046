"""Check that a series is the one that an output folder was measured from.

The check does not rely on the path, because folders are moved, copied and mounted under other names. It compares
checkpoints: an unchanged file is not read again; a changed file is summed again and must give the same sums.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from normgrowth.errors import CheckpointChanged, FolderMismatch
from normgrowth.moments.moments import Moments
from normgrowth.trace.output.store import Stored
from normgrowth.trace.plan import Plan
from normgrowth.workspace import Workspace

ROUNDING = 1e-12  # relative difference of sums whose terms were added in another order


@dataclass(frozen=True)
class TraceFacts:
    """What an output folder stores about its series.

    source: the source as the user gave it. where: its absolute path or address.
    """

    source: str = ""
    where: str = ""
    run: str = ""
    tokens_per_step: float | None = None

    @staticmethod
    def remembered(workspace: Workspace) -> "TraceFacts":
        """Return the facts stored in a folder; missing or damaged fields get their defaults."""
        said = workspace.found.facts if workspace.found else {}
        texts = (said.get(name) for name in ("source", "where", "run"))
        source, where, run = (text if isinstance(text, str) else "" for text in texts)
        tokens = said.get("tokens_per_step")
        return TraceFacts(source, where, run, tokens if isinstance(tokens, int | float) else None)


def changed_files(
    plan: Plan,
    workspace: Workspace,
    facts: TraceFacts,
    other: tuple[str, str, str] | None,
    begun: bool,
    sums: Callable[[int], Moments],
) -> list[Stored]:
    """Raise if the folder belongs to another series; return the steps whose metadata must be stored again.

    facts: of the present series. other: a tensor that differs from the stored one: name, stored size, present size.
    begun: whether stripes are stored. sums: reads a position again and returns its sums.
    """
    if workspace.folder is None or workspace.overwrite:
        return []
    known = TraceFacts.remembered(workspace)
    moved = not _same_place(known, facts)
    old, new = ({"kind": workspace.kind, "source": said.source} for said in (known, facts))
    other_series = FolderMismatch(workspace.folder, old, new)
    common = [i for i, place in enumerate(plan.places) if place.entry and place.stored]
    if moved and not common and (begun or any(place.stored for place in plan.places)):
        raise other_series
    if other:
        name, then, now = other
        raise FolderMismatch(
            workspace.folder, {**old, f"tensor {name}": then}, {**new, f"tensor {name}": now}
        )
    changed = []
    for i in common:
        place = plan.places[i]
        if not place.changed or not place.stored or not place.entry:
            continue
        if not _equal(place.stored.own, sums(i)):
            raise other_series if moved else CheckpointChanged(workspace.folder, place.label, place.step)
        changed.append(replace(place.stored, fingerprint=place.entry.fingerprint, label=place.label))
    return changed


def _same_place(old: TraceFacts, new: TraceFacts) -> bool:
    """Whether a folder was measured from the same location; an unknown location counts as the same."""
    return old.where in ("", new.where)


def _equal(one: Moments, other: Moments) -> bool:
    exact = ("numel", "largest", "nonfinite")
    return all(
        np.array_equal(getattr(one, field), getattr(other, field), equal_nan=field == "largest")
        for field in exact
    ) and np.allclose(one.square, other.square, rtol=ROUNDING, atol=0, equal_nan=True)
