"""Each renderer writes what its golden file shows. No other test compares sentences."""

import re

import pytest
from golden.rendering import RENDERERS, golden_file, rendered

from normgrowth.results import KINDS

NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?)")
ADVICE = "if this change is wanted: .venv/bin/python tests/golden/record.py {kind}, and read the diff"


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize("kind", KINDS)
def test_output_equals_the_golden_file(kind, renderer, one_thread):
    file = golden_file(kind, renderer)
    assert file.is_file(), ADVICE.format(kind=kind)
    expected = file.read_text(encoding="utf-8").splitlines()
    found = rendered(kind, renderer).splitlines()
    if len(found) == len(expected):
        found = [line if same(new, line) else new for new, line in zip(found, expected, strict=True)]
    assert found == expected, ADVICE.format(kind=kind)


def same(new: str, old: str) -> bool:
    """Numbers may differ by one in the last place: CPUs round sums differently."""
    parts = NUMBER.split(new), NUMBER.split(old)
    if len(parts[0]) != len(parts[1]) or parts[0][::2] != parts[1][::2]:
        return False
    return all(_close(a, b) for a, b in zip(parts[0][1::2], parts[1][1::2], strict=True))


def _close(a: str, b: str) -> bool:
    (x, unit), (y, other) = _value(a), _value(b)
    return unit == other and abs(x - y) <= 1.001 * unit * (unit < 1)


def _value(text: str) -> tuple[float, float]:
    """A number, and one in its last place."""
    mantissa, _, exponent = text.replace(",", "").partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(text.replace(",", "")), 10.0 ** (int(exponent or 0) - decimals)


@pytest.mark.parametrize(
    ("new", "old", "equal"),
    [
        ("norm 5.4321", "norm 5.4322", True),
        ("norm 5.4321", "norm 5.4323", False),
        ("norm 5.4321", "rms 5.4321", False),
        ("at step 100", "at step 101", False),
        ("1.5e-07", "1.6e-07", True),
        ("1.5e-07", "1.5e-06", False),
    ],
)
def test_only_the_last_digit_of_fractions_may_differ(new, old, equal):
    assert same(new, old) is equal
