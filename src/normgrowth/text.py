"""How things show themselves: text in which nothing acts, and tables for notebooks.

Names come from anybody's checkpoints. Whatever shows one, in a terminal, a figure, a page or a notebook, shows it as
text.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from fractions import Fraction
from html import escape

MOST, WIDEST = 40, 1000  # rows of a table and words of a list; letters of a cell


def printable(text: object) -> str:
    """Text on one line for a terminal: control characters and unusual spaces are spelled out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def visible(text: object) -> str:
    """Text with every character that would act rather than show (control, bidi, newline) spelt out."""
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _ACTING else c for c in str(text)
    )


_ACTING = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")


def html_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for a notebook, in the notebook's own look. Names may come from anybody's checkpoint: all is escaped."""

    def line(tag: str, cells: Iterable[object]) -> str:
        return f"<tr>{''.join(_cell(tag, cell) for cell in cells)}</tr>"

    rows = list(rows)
    rest = [[f"and {len(rows) - MOST:,} more"]] if len(rows) > MOST else []
    body = "".join(line("td", row) for row in [*rows[:MOST], *rest])
    return f"<table><thead>{line('th', titles)}</thead><tbody>{body}</tbody></table>"


def _cell(tag: str, value: object) -> str:
    form = ".6g" if isinstance(value, float) else "," if isinstance(value, int) else ""
    said = format(value, form) if form else visible(shortened(value))
    return f'<{tag} style="text-align: left">{escape(said)}</{tag}>'  # notebooks push words to the right


def shortened(text: object) -> str:
    text = str(text)
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}…"


def listed(words: Iterable[object]) -> str:
    words = [str(word) for word in words]
    more = f" and {len(words) - MOST:,} more" if len(words) > MOST else ""
    return ", ".join(words[:MOST]) + more


def by_run(degrees: Sequence[Fraction | int | str | None]) -> str:
    """The degree of a module in its last run, and those of other runs where they differ: `3 (first run 4)`."""
    texts = ["zero" if degree is None else str(degree) for degree in degrees]
    if not texts:
        return "-"
    last = texts[-1]
    if all(text == last for text in texts):
        return last
    if all(text == last for text in texts[1:]):
        return f"{last} (first run {texts[0]})"
    return f"{last} (other runs {', '.join(sorted({text for text in texts if text != last}))})"
