"""Safe text: escaped names, their natural order, numbers, tables for notebooks, one-line reprs, labels of folders.

Names come from untrusted checkpoints. Terminal, figures, HTML page and notebook display them escaped.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence, Sized
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from fractions import Fraction
from html import escape
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any

MOST, WIDEST = 40, 1000  # maximum rows of a table or words of a list; characters of a cell
LINE, LONGEST, FEW = 200, 40, 3  # limits of a repr: characters, characters of a value, items of a list
TRACKER_NAMES = ("norms", "tracker")  # folders of a tracker, whose names do not say which run they belong to


def printable(text: object) -> str:
    """Text on one line for a terminal: control characters and unusual spaces are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def visible(text: object) -> str:
    """Text with control, bidirectional and newline characters escaped."""
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _ACTING else c for c in str(text)
    )


_ACTING = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")


def natural_order(names: Iterable[str]) -> list[str]:
    """The names with their numbers in ascending order, "h.2" before "h.10", and the words between as they first occur.

    >>> natural_order(["embedding", "h.10.bias", "h.2.weight", "h.2.bias"])
    ['embedding', 'h.2.bias', 'h.2.weight', 'h.10.bias']
    """
    first: dict[str, int] = {}

    def key(name: str) -> list[tuple[int, int, str]]:
        found, before = [], ""
        for i, part in enumerate(re.split(r"([0-9]+)", name)):
            if is_number := i % 2 == 1:
                digits = part.lstrip("0")  # of any length, so that int() may refuse them
                found.append((0, len(digits), digits))
            else:
                found.append((1, first.setdefault(before + part, len(first)), ""))
            before += "#" if is_number else part  # the words of all layers have one order
        return found

    return sorted(names, key=key)


def number(x: float, digits: int = 5) -> str:
    """A number with this many significant digits, in scientific notation if it is below 1e-4 or at least 1e7."""
    if not isfinite(x):
        return "-"
    if x == 0:
        return "0"
    if not 1e-4 <= abs(x) < 1e7:
        return f"{x:.{max(digits - 2, 0)}e}"
    return f"{x:,.{max(0, digits - 1 - floor(log10(abs(x))))}f}"


def html_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table for a notebook. Everything is escaped: names come from untrusted checkpoints."""

    def line(tag: str, cells: Iterable[object]) -> str:
        return f"<tr>{''.join(_cell(tag, cell) for cell in cells)}</tr>"

    rows = list(rows)
    rest = [[f"and {len(rows) - MOST:,} more"]] if len(rows) > MOST else []
    body = "".join(line("td", row) for row in [*rows[:MOST], *rest])
    return f"<table><thead>{line('th', titles)}</thead><tbody>{body}</tbody></table>"


def _cell(tag: str, value: object) -> str:
    form = ".6g" if isinstance(value, float) else "," if isinstance(value, int) else ""
    said = format(value, form) if form else visible(shortened(value))
    return f'<{tag} style="text-align: left">{escape(said)}</{tag}>'  # notebooks align cells to the right


def shortened(text: object) -> str:
    text = str(text)
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}…"


def one_line(self: Any) -> str:
    """The repr of a dataclass in one line: the fields that differ from their defaults; for long ones, their size."""
    shown = []
    for one in fields(self):
        value = getattr(self, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if one.repr and not (type(value) is type(default) and value == default):
            shown.append(f"{one.name}={_in_short(value)}")
    text = ", ".join(shown)
    return f"{type(self).__name__}({text if len(text) <= LINE else text[: LINE - 1] + '…'})"


def _in_short(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…")
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple | list) and len(value) <= FEW and all(map(_is_plain, value)):
        return f"[{', '.join(map(_in_short, value))}]"
    if isinstance(value, Sized):
        return f"<{len(value):,} {'entry' if len(value) == 1 else 'entries'}>"
    return f"<{type(value).__name__}>" if is_dataclass(value) else repr(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float)


def listed(words: Iterable[object]) -> str:
    words = [str(word) for word in words]
    more = f" and {len(words) - MOST:,} more" if len(words) > MOST else ""
    return ", ".join(words[:MOST]) + more


def by_run(degrees: Sequence[Fraction | int | str | None]) -> str:
    """The degree of a module in its last forward pass, and differing degrees of earlier passes: `3 (first run 4)`."""
    texts = ["zero" if degree is None else str(degree) for degree in degrees]
    if not texts:
        return "-"
    last = texts[-1]
    if all(text == last for text in texts):
        return last
    if all(text == last for text in texts[1:]):
        return f"{last} (first run {texts[0]})"
    return f"{last} (other runs {', '.join(sorted({text for text in texts if text != last}))})"


def labels(folders: Sequence[Path | str]) -> list[str]:
    """A label for each folder: the shortest end of its path that no other folder has; a tracker's with its parent."""
    paths = [Path(folder).resolve().parts for folder in folders]
    sizes = [1 + (path[-1] in TRACKER_NAMES) for path in paths]
    while True:
        found = ["/".join(path[-size:]).replace("//", "/") for path, size in zip(paths, sizes, strict=True)]
        owners: dict[str, set[tuple[str, ...]]] = {}
        for label, path in zip(found, paths, strict=True):
            owners.setdefault(label, set()).add(path)
        shared = [i for i, label in enumerate(found) if len(owners[label]) > 1 and sizes[i] < len(paths[i])]
        if not shared:
            return found
        for i in shared:
            sizes[i] += 1


def json_problem(error: Exception) -> str:
    """Why a text is not JSON, in one line, without Python's advice to allow longer numbers."""
    if "set_int_max_str_digits" in str(error):
        return "it contains a number with too many digits"
    return str(error).splitlines()[0]


def did_you_mean(path: Path | str) -> str:
    """The end of an error about a missing path: a similar path that exists, or "" if no path is similar."""
    path = Path(path)
    try:
        names = [other.name for other in path.parent.iterdir()]
    except OSError:
        return ""
    near = get_close_matches(path.name, names, 1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""
