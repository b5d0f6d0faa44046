"""Write the golden files again: `python tests/golden/record.py`, or `python tests/golden/record.py fits trace`."""

import sys
from pathlib import Path

if __name__ == "__main__":  # as a script, this folder is on the path and not its parent
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from golden.rendering import RENDERERS, golden_file, rendered

from normgrowth.results import KINDS


def record(kinds: list[str]) -> None:
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise SystemExit(f"unknown kind {unknown[0]!r}; there are {', '.join(KINDS)}")
    torch.set_num_threads(1)
    for kind in kinds or KINDS:
        for renderer in RENDERERS:
            golden_file(kind, renderer).write_text(rendered(kind, renderer), encoding="utf-8")
            print(golden_file(kind, renderer))


if __name__ == "__main__":
    record(sys.argv[1:])
