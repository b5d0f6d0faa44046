"""Which file shows which result: `report/PART/KIND.py`, for each part and kind of result.

columns/KIND.py    the columns of tables that the terminal and the page show
terminal/KIND.py   show(result, console): the table and the sentences
figures/KIND.py    FIGURES: name -> Drawing; the first is `result.plot()`
sentences/KIND.py  sentences(result): what the result shows, for the terminal, the page and the metadata of figures
page/sections/KIND.py   sections(content): the sections of the HTML page for all results of this kind;
                   summary(content), optional: sentences at the top of the page
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from normgrowth.results import Result

if TYPE_CHECKING:
    from rich.console import Console

    from normgrowth.report.figures.style import Drawing


def view(part: str, kind: str) -> ModuleType | None:
    """The module that shows a kind of result, or None."""
    name = f"normgrowth.report.{part}.{kind}"
    return import_module(name) if find_spec(name) else None


def show(result: Result, console: "Console | None" = None, *, wide: bool = False, **options: Any) -> None:
    """Print a result. wide: print all columns. options: passed to `show` in terminal/KIND.py."""
    from normgrowth.report.terminal.console import new_console

    module = view("terminal", result.kind)
    assert module is not None, f"report/terminal/{result.kind}.py is missing"
    module.show(result, console or new_console(wide=wide), **options)


def to_text(result: Result) -> str:
    from rich.console import Console

    from normgrowth.report.terminal.console import WIDTH

    file = io.StringIO()
    show(result, Console(file=file, width=WIDTH, force_jupyter=False))
    return file.getvalue().rstrip("\n")


def to_html(result: Result) -> str:
    """The text that `print` shows as HTML for a notebook, with colors and without scripts."""
    from rich.console import Console

    from normgrowth.report.terminal.console import WIDTH

    # Without force_jupyter=False, rich would display each line separately in a notebook.
    console = Console(file=io.StringIO(), width=WIDTH, record=True, force_terminal=True, force_jupyter=False)
    show(result, console)
    form = '<pre style="font-family:monospace;line-height:1.3">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=form)


def figures(result: Result) -> "Mapping[str, Drawing]":
    """The figures of this kind of result, by name; some may need data that this result lacks."""
    module = view("figures", result.kind)
    if module is None:
        return {}
    return module.figures_of(result) if hasattr(module, "figures_of") else module.FIGURES


def draw(
    result: Result,
    folder: Path | str,
    *,
    formats: Sequence[str] = ("png", "svg", "pdf"),
    overwrite: bool = True,
    **options: Any,
) -> list[Path]:
    """Write every figure that the result has the data for as KIND_NAME.FORMAT; return the paths.

    overwrite: replace figures of other results. options: passed to the figures that accept them, such as `published`
    or `overlay`.
    """
    from normgrowth.report.figures.style import known_formats, save

    formats = known_formats(formats)
    drawn = {
        f"{result.kind}_{name}": (drawing.title, figure)
        for name, drawing in figures(result).items()
        if (figure := drawing(result, **drawing.accepted(options))) is not None
    }
    return save(drawn, folder, formats, description(result), origin=_origin(result), overwrite=overwrite)


def description(result: Result) -> str:
    """The result in words, for the metadata of figures."""
    sentences = getattr(view("sentences", result.kind), "sentences", None)
    said = [to_text(result)] if sentences is None else sentences(result)
    counted = getattr(result, "parameters", None)
    return " ".join([*([f"Parameters: {counted}."] if isinstance(counted, str) and counted else []), *said])


def _origin(result: Result) -> str:
    """The source of a figure: the series and the selection of parameters."""
    chosen = getattr(result, "selection", None)
    said = (
        [f"{name}={value}" for name, value in asdict(chosen).items() if value is not None] if chosen else []
    )
    source = getattr(result, "source", "") or getattr(result, "run", "")
    return ",".join([source, *said])
