"""Number formats of tables, sentences and pages."""

from math import isfinite

from normgrowth.text import number


def signed(x: float, digits: int = 4) -> str:
    """A number with an explicit sign, for a term of a sum."""
    return number(x, digits) if x < 0 or not isfinite(x) else f"+{number(x, digits)}"


def times(x: float) -> str:
    """A growth factor with four decimals, or six if it is very close to 1."""
    if 0 < abs(x - 1) < 1e-4:
        return f"{x:.6f}"
    return f"{x:.4f}" if 0.1 <= x < 10 else number(x, 5)


def cosine(x: float) -> str:
    """A cosine with five decimals; close to 1 in the form "1 − 2.3e-06", with spaces that do not break."""
    if not isfinite(x):
        return "-"
    if x >= 1:
        return "1"
    return f"1\u00a0−\u00a0{1 - x:.1e}" if x > 0.99995 else f"{x:.5f}"


def small(x: float) -> str:
    """A cosine that is usually close to 0, such as the alignment."""
    return f"{x:.4f}" if abs(x) >= 1e-3 else number(x, 3)


def percent(x: float) -> str:
    return f"{100 * x:.1f}%" if isfinite(x) else "-"
