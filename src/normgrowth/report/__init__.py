"""Reports: results as text, figures and one HTML page.

Names in results come from checkpoints, which anyone may have written: each is shown as it is spelled, and none is
interpreted as markup, mathematics or control characters of a terminal.
"""

TYPE_CHECKING = False  # as in typing, without its import: `import normgrowth` stays light
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
    """Write one self-contained HTML page on results, and return where it is; a notebook shows it.

        ng.report("traces/gpt")                                    # traces/gpt/report.html
        ng.report([trace, ng.dynamics(trace, "3e-4")], "growth.html")

    results: one or several of: a result, a folder that holds results itself or in folders below, also of a run that
    is still training, and "published:t5". Runs are overlaid.
    path: the file; without, report.html in the first folder, or here if results come first.
    title: of the page. fit: fit growth laws to the norms of each run.
    overwrite: replace a page at this path that was made from other results.
    """
    from normgrowth.report.page.write import write_results

    return write_results(results, path, title=title, fit=fit, overwrite=overwrite)
