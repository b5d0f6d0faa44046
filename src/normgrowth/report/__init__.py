"""Reports: results as text, figures and one HTML page.

Names in results come from checkpoints, which are untrusted. They are shown literally and never interpreted as markup,
mathematics or control characters of a terminal.
"""

TYPE_CHECKING = (
    False  # type checkers know this name; importing it from typing would slow down `import normgrowth`
)
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from normgrowth.report.page.page_file import Page
    from normgrowth.results import Result


def report(
    results: "Result | Path | str | Sequence[Result | Path | str]",
    path: "Path | str | None" = None,
    *,
    title: str = "",
    fit: bool = True,
    overwrite: bool = False,
) -> "Page":
    """Write one self-contained HTML page for the results and return its path as a `Page`, which a notebook displays.

    results: one or several of: a result; a folder with results, directly or in subfolders (the run may still be
    training); "published:t5". Runs are overlaid.
    path: the HTML file. By default report.html in the first folder, or in the current directory if the first input is
    not a folder.
    title: title of the page. fit: fit growth laws to the norms of each run.
    overwrite: replace a page at this path that was made from other results.

    >>> page = ng.report([ng.trace("checkpoints"), ng.fit("published:t5")], "growth.html")
    """
    from normgrowth.report.page.write import write_results

    return write_results(results, path, title=title, fit=fit, overwrite=overwrite)
