"""normgrowth report."""

import argparse
import hashlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from normgrowth.cli.command import Action
from normgrowth.workspace import refuse_other_origin


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", metavar="DIR", help="output folders of any commands")
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="HTML file (default: report.html in the first folder)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the page of other folders in that file"
    )
    parser.add_argument("--title", default="", help="title of the page")
    parser.add_argument("--no-fit", action="store_true", help="do not fit growth laws")


def _report(arguments: argparse.Namespace) -> int:
    command = shlex.join(["normgrowth", *sys.argv[1:]])
    page = write_report(
        arguments.folders,
        arguments.out,
        title=arguments.title,
        fit=not arguments.no_fit,
        command=command,
        overwrite=arguments.overwrite,
    )
    print(page.path)
    return 0


@dataclass(frozen=True)
class Page:
    """Where it was written. In a notebook it shows itself."""

    path: Path

    def _repr_html_(self) -> str:
        text = escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe sandbox="allow-scripts" width="100%" height="800" srcdoc="{text}"></iframe>'


def write_report(
    folders: Sequence[Path | str] | Path | str,
    path: Path | str | None = None,
    *,
    title: str = "",
    fit: bool = True,
    command: str = "normgrowth.write_report",
    overwrite: bool = False,
) -> Page:
    """One html page on everything that folders of ours hold; without a path, report.html in the first of them.

    overwrite: replace the page of other folders that is at the path.
    """
    from normgrowth.report.page.folders import report
    from normgrowth.report.page.growth_laws import growth_laws

    several = [folders] if isinstance(folders, str | Path) else list(folders)
    target = Path(several[0]) / "report.html" if path is None else Path(path)
    origin = _origin(several)
    if path is not None and not overwrite:
        refuse_other_origin(target, origin)
    made_by = {"command": command, "versions": versions(), "folders": origin}
    fitted = growth_laws if fit else None
    return Page(report(several, target, title=title, fitted=fitted, made_by=made_by))


def _origin(folders: Sequence[Path | str]) -> str:
    """Names of folders, and a digest that tells folders of the same name apart."""
    paths = [Path(folder).resolve() for folder in folders]
    digest = hashlib.sha256("\n".join(map(str, paths)).encode("utf-8", "surrogateescape")).hexdigest()
    return ",".join([*(path.name for path in paths), digest[:8]])


def versions() -> dict[str, str]:
    import platform
    from importlib.metadata import version

    return {"normgrowth": version("normgrowth"), "python": platform.python_version()}


COMMAND = Action(
    summary="write one self-contained HTML report for any results",
    description="Write one self-contained HTML page for the results in the folders: norms and directions by layer\n"
    "with their growth laws, saturation, heads, scaling, sweeps, findings of lint. It needs no network.",
    examples="""  normgrowth report traces/gpt
  normgrowth report traces/gpt traces/gpt-decayed -o both.html     (overlaid)
  normgrowth report runs/lab                                       (every result in it)""",
    configure_options=_options,
    action=_report,
)
