"""The file of numbers: written by `record.py`, read and held against what is measured by `test_numbers.py`."""

import json
import math
from pathlib import Path

from net.adapter import Numbers, Plain

FILE = Path(__file__).with_name("numbers.json")
FLOOR = 1e-3  # of the relative tolerance: the absolute one, for numbers that are 0 up to rounding
SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # which JSON does not have


def write(entries: dict[str, Numbers]) -> None:
    plain = {name: {key: _storable(value) for key, value in entry.items()} for name, entry in entries.items()}
    FILE.write_text(json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read() -> dict[str, Numbers]:
    """Python writes and reads floats without loss of a bit."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        name: {
            key: SPECIAL.get(value, value) if isinstance(value, str) else value
            for key, value in entry.items()
        }
        for name, entry in entries.items()
    }


def differences(found: Numbers, expected: Numbers, tolerance: float) -> list[str]:
    """A line for each number that is not what it must be, or is there on one side only."""
    lines = [f"{key}: is not measured any more" for key in expected if key not in found]
    lines += [f"{key}: is not in {FILE.name}" for key in found if key not in expected]
    for key in (key for key in expected if key in found):
        if not _same(found[key], expected[key], tolerance):
            lines.append(
                f"{key}: {found[key]!r} instead of {expected[key]!r}{_apart(found[key], expected[key])}"
            )
    return lines


def _same(found: Plain, expected: Plain, tolerance: float) -> bool:
    if not (isinstance(found, float) and isinstance(expected, float)):
        return type(found) is type(expected) and found == expected
    if math.isnan(found) or math.isnan(expected):
        return math.isnan(found) and math.isnan(expected)
    return found == expected or math.isclose(found, expected, rel_tol=tolerance, abs_tol=FLOOR * tolerance)


def _apart(found: Plain, expected: Plain) -> str:
    if not (isinstance(found, float) and isinstance(expected, float)) or not expected:
        return ""
    return f" (relative difference {abs(found - expected) / abs(expected):.1e})"


def _storable(value: Plain) -> Plain:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
