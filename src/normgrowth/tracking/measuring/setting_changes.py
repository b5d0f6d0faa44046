"""Settings of the optimizers that change during a run. Learning rates may, and are recorded at every step."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from normgrowth.tracking.optimizer_rules import changed_settings, describe_groups, plain_groups

CHANGES = 10  # of one setting that are recorded; a schedule may change it at every step


class SettingChanges:
    """The current settings, and sentences about earlier changes."""

    def __init__(self, optimizers: Sequence[Optimizer], earlier: list[str]) -> None:
        """earlier: the changes before a resume."""
        self.groups = describe_groups(optimizers)
        self.changes = earlier
        self._count: dict[str, int] = {}  # how often each setting changed

    def look(self, optimizers: Sequence[Optimizer], step: int) -> tuple[dict[str, Any], str]:
        """Return the changed fields of the records before the step after `step`, and a warning; "" if none is due."""
        groups = describe_groups(optimizers)
        if groups == self.groups:
            return {}, ""
        changed = changed_settings(self.groups, groups)
        self.groups = groups
        if not step:  # nothing was recorded with the earlier settings
            return {"optimizer_groups": plain_groups(groups)}, ""
        new = {name: said for name, said in changed.items() if self._count.get(name, 0) < CHANGES}
        for name, said in new.items():
            self._count[name] = self._count.get(name, 0) + 1
            more = "; later changes are not recorded" if self._count[name] == CHANGES else ""
            self.changes.append(f"from step {step + 1} on, {said}{more}")
        if not new:
            return {}, ""
        fields = {"optimizer_groups": plain_groups(groups), "optimizer_changes": list(self.changes)}
        # Parameters may be added to the optimizer at any time, which needs no warning.
        told = [said for name, said in new.items() if not name.startswith(("groups", "parameters"))]
        return (
            fields,
            f"step {step + 1}: settings of the optimizer changed: {'; '.join(told)}" if told else "",
        )
