"""Which architectures the exact saturated limit was shown on: writes architectures.json and docs/architectures.md.

python benchmarks/architectures.py            # run all, about two minutes; then write the page
python benchmarks/architectures.py --page     # write the page from the records
"""

import json
import math
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECORDS = Path(__file__).parent / "architectures.json"
PAGE = ROOT / "docs" / "architectures.md"


def tests() -> tuple[Any, Any]:
    """The models and the comparison are those of the tests."""
    sys.path.insert(0, str(ROOT / "tests"))
    from network.asymptotics import architectures, comparison  # pyright: ignore[reportMissingImports]

    return architectures, comparison


def measure(case: Any, comparison: Any, branches: tuple[str | None, str | None]) -> dict[str, Any]:
    """One way to run one model."""
    found = comparison.compare(case)
    patterns = comparison.compare(case, **case.options) if case.options else None
    output, limit = found.output, found.limit
    rows = [row for row in found.rows if not row.doubt]
    return {
        "model": case.model,
        "class": type(limit.model).__name__,
        "attention": case.attention,
        "padding": case.padding,
        "degree": str(limit.degrees[""]),
        "slope": output.slope,
        "branches": [None if name is None else str(limit.degrees[name]) for name in branches],
        "factors": list(comparison.FACTORS),
        "cosines": output.cosines,
        "sizes": output.sizes,
        "outputs": len(rows),
        "worst cosine": max(row.cosine for row in rows),
        "worst size": max(row.size for row in rows),
        "worst slope": max(abs(row.slope - row.degree) for row in rows if row.degree is not None),
        "ties": sum(tie.tied for tie in limit.ties),
        "softmax rows tied and undecided": limit.undecided,
        "doubtful": limit.doubtful,
        "overflowed at": [
            c
            for i, c in enumerate(comparison.FACTORS)
            if not all(math.isfinite(row.norms[i]) for row in rows)
        ],
        "patterns": None if patterns is None else shown(patterns, comparison),
        "vanished": limit.vanished,
        "parameters": len(list(limit.model.parameters())),
    }


def shown(patterns: Any, comparison: Any) -> dict[str, Any]:
    """The tensors of attention patterns that the model returns: how many the limit decides, how well."""
    places = [key for key, value in patterns.result.items() for _ in comparison.floating(value)]
    returned = [row for row in patterns.rows if row.module == "" and "attentions" in places[row.leaf]]
    decided = [row for row in returned if not row.doubt]
    return {
        "returned": len(returned),
        "decided": len(decided),
        "worst": max((row.size for row in decided), default=0.0),
        "orders": patterns.limit.used_orders,
    }


def run() -> list[dict[str, Any]]:
    architectures, comparison = tests()
    records = []
    for name in architectures.MODELS:
        for case in architectures.cases(name):
            records.append(measure(case, comparison, architectures.BRANCHES[name]))
            print(case, records[-1]["degree"], f"{min(records[-1]['cosines']):.0e}", flush=True)
    return records


def number(value: float) -> str:
    return "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


def line(records: list[dict[str, Any]]) -> str:
    """A model: the worst over the ways to run it."""
    first = records[0]
    best = [min(range(len(r["cosines"])), key=lambda i: (r["cosines"][i], i)) for r in records]
    worst = max(range(len(records)), key=lambda i: records[i]["cosines"][best[i]])
    factor = records[worst]["factors"][best[worst]]
    cells = [
        first["model"],
        f"`{first['class']}`",
        ", ".join(dict.fromkeys(r["attention"] for r in records)) if "nn." not in first["model"] else "–",
        "with, without" if any(r["padding"] for r in records) else "without",
        first["degree"],
        f"{first['slope']:.4f}".replace("-0.0000", "0.0000"),
        ", ".join("–" if degree is None else degree for degree in first["branches"]),
        f"{number(records[worst]['cosines'][best[worst]])} at 1e{round(math.log10(factor))}",
        number(max(r["cosines"][-1] for r in records)),
        number(max(min(r["sizes"]) for r in records)),
        f"{sum(r['outputs'] for r in records)}: {number(max(r['worst cosine'] for r in records))}, "
        f"{number(max(r['worst size'] for r in records))}",
        str(max(r["ties"] for r in records)),
        decided([r["patterns"] for r in records if r["patterns"]]),
        f"{len(first['vanished'])} of {first['parameters']}",
    ]
    return "| " + " | ".join(cells) + " |"


def decided(patterns: list[dict[str, Any]]) -> str:
    returned = sum(p["returned"] for p in patterns)
    return f"{sum(p['decided'] for p in patterns)} of {returned}" if returned else "–"


def page(result: dict[str, Any]) -> str:
    models: dict[str, list[dict[str, Any]]] = {}
    for record in result["records"]:
        models.setdefault(record["model"], []).append(record)
    head = ["model", "class", "attention", "padding", "degree", "measured", "branches", "1 − cos", "at 1e7"]
    head += ["size", "all outputs", "ties", "patterns", "vanish"]
    table = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *map(line, models.values())]
    outputs = sum(record["outputs"] for record in result["records"])
    overflowed = [name for name, ways in models.items() if any(way["overflowed at"] for way in ways)]
    doubtful = [name for name, ways in models.items() if any(way["doubtful"] for way in ways)]
    return f"""# Architectures

The exact saturated limit, `normgrowth.saturated(model)`, beside the network itself with its parameters times c, on
{len(models)} models in {len(result["records"])} ways to run them, with transformers {result["transformers"]} and
torch {result["torch"]}. Each has two blocks of width 32, random weights, biases that are not zero and gains that are
not one. The scaled networks compute in float64, also where a norm casts to float32. Overflowed up to c = 1e7, and
compared below: {", ".join(overflowed) or "none"}.

Made from `benchmarks/architectures.json`, which `python benchmarks/architectures.py` writes; the tests in
`tests/network/asymptotics/test_architectures.py` hold the same numbers to bounds.

{chr(10).join(table)}

What the columns say; where a model was run in several ways, the worst of them:

- **degree**: k in lim c^(−k) f(x; cθ), computed; **measured**: the slope of log‖f(x; cθ)‖ between c = 1e6 and 1e7.
- **branches**: the degrees of what attention and the feedforward layer of the second block add to the residual
  stream. Where one is higher, the other is nothing beside it in the limit: gated feedforward layers outgrow
  attention. A model with a norm behind each branch keeps both.
- **1 − cos**: of the output, the smallest over positions, at the best c from 10 to 1e7; then at 1e7.
- **size**: ‖f(x; cθ)/cᵏ − limit‖ / ‖limit‖ at the best c. What is left is the next order: 1/c where biases are,
  rounding where there are none.
- **all outputs**: how many outputs of submodules were compared ({outputs} in all; elements of unlike degree
  separately), and the worst 1 − cos and size among them, each at its best c.
- **ties**: softmax rows whose largest score several keys share in the leading order. Common from the second block
  on where the residual stream is dropped: tokens that attend to the same key become equal to leading order.
- **patterns**: of the attention patterns that the model returns (`output_attentions=True`), how many the limit
  decides; the rest it reports in `limit.doubtful`. Without `output_attentions`, nothing is reported as doubtful
  but in {", ".join(doubtful) or "no model"}.
- **vanish**: parameters that the output does not depend on in the limit.
"""


def main() -> None:
    if "--page" not in sys.argv:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)
        records = run()
        result = {"records": records, "torch": version("torch"), "transformers": version("transformers")}
        RECORDS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RECORDS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
