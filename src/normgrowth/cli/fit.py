"""normgrowth fit: which growth law the norms follow."""

import argparse
import json
import sys
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.cli.source import real, whole

if TYPE_CHECKING:
    from normgrowth.fit.result import Fits

EXAMPLES = """examples:
  normgrowth fit published:t5_norm
  normgrowth fit norms.csv --laws sqrt,sqrt2,power
  normgrowth fit traces/gpt --level layer
  normgrowth fit traces/gpt --from 10000 --json

published:NAME is one of the paper's own series: t5_norm, t5_norm_by_layer.
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "fit",
        help="growth laws of norms, with intervals and evidence",
        description="Fit growth laws to norms: a·√t + b and its rivals, with r², confidence intervals that\n"
        "respect correlated residuals, and the weight of evidence for each law.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a csv with the columns step and norm (and layer, for several series), or the folder of a trace",
    )
    parser.add_argument(
        "--level",
        choices=("model", "layer", "role", "tensor"),
        help="of a trace: one fit for the model (default) or one for each layer, role or tensor",
    )
    parser.add_argument(
        "--laws",
        type=_names,
        metavar="NAME,NAME",
        help="some of sqrt, sqrt2, power2, power, linear, root4, log, relax, constant (default: all)",
    )
    parser.add_argument(
        "--from", dest="first", type=real, default=-inf, metavar="STEP", help="leave out what is before"
    )
    parser.add_argument(
        "--to", dest="last", type=real, default=inf, metavar="STEP", help="leave out what is after"
    )
    parser.add_argument("--full", action="store_true", help="every law for each of several series")
    parser.add_argument(
        "--bootstrap", type=whole, metavar="N", help="replicates for the intervals; 0 for none"
    )
    parser.add_argument("--confidence", type=real, default=0.95, metavar="C", help="of the intervals (0.95)")
    parser.add_argument("--seed", type=whole, default=0, help="of the replicates (0)")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print everything as JSON, null where a value is open or undefined",
    )
    parser.set_defaults(run=run)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.fit.points import points
    from normgrowth.report.terminal.fits import print_fit, print_fits

    title, counted, series = _fitted(arguments)
    facts = {name: fits.facts() for name, fits in series.items()}
    if arguments.json:
        json.dump(
            {"source": title, "parameters": counted, "series": _finite(facts)}, sys.stdout, ensure_ascii=False
        )
        print()
    elif len(facts) == 1 or arguments.full:
        for name, fact in facts.items():
            about = f"{points(fact['points'])}{f'; parameters: {counted}' if counted else ''}"
            print_fit(fact, f"{title}{f', {name}' if name else ''}: {about}")
    else:
        print_fits(facts, f"{title}: {len(facts)} series{f'; parameters: {counted}' if counted else ''}")
    return 0


def _fitted(arguments: argparse.Namespace) -> tuple[str, str, dict[str, "Fits"]]:
    """What was fitted, which parameters its norms count, and the fits of each series."""
    from normgrowth.errors import InputError
    from normgrowth.fit.fitting import REPLICATES, fit_series

    title, counted, series = _series(arguments)
    kept = {
        name: (steps[chosen], norms[chosen])
        for name, (steps, norms) in series.items()
        for chosen in [~((steps < arguments.first) | (steps > arguments.last))]
    }
    fits = fit_series(
        kept,
        laws=arguments.laws,
        seed=arguments.seed,
        bootstrap=REPLICATES if arguments.bootstrap is None else arguments.bootstrap,
        confidence=arguments.confidence,
    )
    if not any(law.fitted for found in fits.values() for law in found.values()):
        reason = next(iter(next(iter(fits.values())).values())).reason
        raise InputError(f"{arguments.file}: no law can be fitted: {reason}")
    return title, counted, fits


def _series(arguments: argparse.Namespace) -> tuple[str, str, dict[str, Any]]:
    from normgrowth.errors import InputError
    from normgrowth.fit.fitting import series_of
    from normgrowth.fit.points import read_norms
    from normgrowth.records import FILE, Records

    file = arguments.file
    path = Path(file)
    if path.is_dir() or path.name == FILE:
        records = Records.read(path if path.is_dir() else path.parent)
        title = str(records.made_by.get("source", file))
        return title, records.parameters, series_of(records, arguments.level or "model")
    if arguments.level:
        raise InputError(f"{file}: --level is for traces; the columns of a csv say what its series are")
    if file.startswith("published:"):
        title, series = _published(file.removeprefix("published:"))
        return title, "", series
    if not path.is_file():
        raise InputError(f"{file}: no such file; a csv or the folder of a trace is wanted")
    return file, "", read_norms(path)


def _published(name: str) -> tuple[str, dict[str, Any]]:
    from normgrowth.errors import InputError
    from normgrowth.paper.published.tables import published

    table = published(name)
    if "norm" not in table:
        raise InputError(
            f"published:{name} has no norms; published:t5_norm and published:t5_norm_by_layer do"
        )
    if "layer" not in table:
        return f"{name} ({table.source})", {"": (table["step"], table["norm"])}
    layers = {int(number): table.layer(int(number)) for number in table["layer"]}
    series = {f"layer {number}": (rows["step"], rows["norm"]) for number, rows in layers.items()}
    return f"{name} ({table.source})", series


def _finite(value: Any) -> Any:
    """JSON has neither infinity nor NaN."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value
