"""Write numbers.json anew: `python tests/net/record.py`, or some entries only: `python tests/net/record.py fit lint`.

Only for numbers that change on purpose, such as after a fault was mended. Prints every number that changes; say in the
commit message why it does.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ == "__main__":  # as a script, this folder is on the path and not its parent
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from net import expected
from net.measurements import GROUPS


def record(names: list[str]) -> None:
    groups = {group.entry: group for group in reversed(GROUPS.values())}
    if unknown := [name for name in names if name not in groups]:
        raise SystemExit(f"unknown entry {unknown[0]!r}; there are {', '.join(reversed(groups))}")
    torch.set_num_threads(1)
    before = expected.read() if expected.FILE.exists() else {}
    entries = {}
    for name in reversed(groups):
        if names and name not in names:
            entries[name] = before[name]
            continue
        with TemporaryDirectory() as folder:
            entries[name] = groups[name].measure(Path(folder))
        for line in expected.differences(entries[name], before.get(name, {}), 0.0):
            print(f"{name}: {line}")
    expected.write(entries)
    print(f"{expected.FILE}: {sum(map(len, entries.values()))} numbers")


if __name__ == "__main__":
    record(sys.argv[1:])
