"""Which file shows which result: `report/PART/KIND.py`, for each part and kind of result.

terminal/KIND.py   show(result, console): the table and the sentences
figures/KIND.py    FIGURES: name -> function of a result that returns a figure; the first is `result.plot()`
sentences/KIND.py  what the result shows, in sentences that the others share; where it needs any
page/sections/KIND.py   sections(content): the sections of the HTML page on all results of this kind; summary(content):
                   sentences on top of the page, where it has any
"""

import io
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from normgrowth.results import Result

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100  # of text that no terminal shows


def view(part: str, kind: str) -> ModuleType | None:
    """The module that shows a kind of result, or None."""
    name = f"normgrowth.report.{part}.{kind}"
    return import_module(name) if find_spec(name) else None


def show(result: Result, console: "Console | None" = None, **options: Any) -> None:
    """Print a result. options: those of `show` in the file of its kind."""
    from normgrowth.report.terminal.console import new_console

    module = view("terminal", result.kind)
    assert module is not None, f"report/terminal/{result.kind}.py is missing"
    module.show(result, console or new_console(), **options)


def to_text(result: Result) -> str:
    from rich.console import Console

    file = io.StringIO()
    show(result, Console(file=file, width=WIDTH, force_jupyter=False))
    return file.getvalue().rstrip("\n")


def to_html(result: Result) -> str:
    """The text that `print` shows, for a notebook: the same tables with their colors and no scripts."""
    from rich.console import Console

    # In a notebook rich would display each line by itself.
    console = Console(file=io.StringIO(), width=WIDTH, record=True, force_terminal=True, force_jupyter=False)
    show(result, console)
    form = '<pre style="font-family:monospace;line-height:1.3">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=form)


def figures(result: Result) -> Mapping[str, Callable[..., Any]]:
    """The figures of a result, by name."""
    module = view("figures", result.kind)
    return {} if module is None else module.FIGURES


def draw(result: Result, folder: Path | str, **options: Any) -> list[Path]:
    """Write every figure that the result has the numbers for, as png, svg and pdf; returns the paths.

    options: those of `draw` in the file of its kind.
    """
    from normgrowth.report.figures.style import FORMATS, save

    module = view("figures", result.kind)
    if module is not None and hasattr(module, "draw"):
        return module.draw(result, folder, **options)
    drawn = {name: make(result) for name, make in figures(result).items()}
    titled = {
        name: (f"{result.kind}: {name}", figure) for name, figure in drawn.items() if figure is not None
    }
    return save(titled, folder, options.pop("formats", FORMATS), to_text(result), **options)
