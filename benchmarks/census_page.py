"""Make the page of the census, docs/architectures.md, from the records."""

from collections import Counter
from typing import Any

# From worst to best: an architecture counts by its worst setting.
OUTCOMES = ("wrong", "crashed", "undecided", "refused", "not verified", "converging", "right", "not built")
COLUMNS = {
    "float64": "float64",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "autocast bfloat16": "autocast",
}

# Why the limit reports doubtful values although it is right.
PADDING = "Local attention pads the text to whole blocks, and the queries of the padding are exactly 0. "
FLAGGED = {
    "dbrx": "Queries and keys are clipped to the same bound, so that some scores cancel to 0. The omitted orders of "
    "these scores are below 0 and do not change the weights.",
    "longt5": PADDING
    + "Only the position bias ranks their keys, and it ties. The size of the omitted orders of the scores is known for "
    "a whole tensor, not for each row, so the limit cannot rule out that they decide these ties. The model drops the "
    "padding.",
    "pegasus_x": PADDING
    + "Their keys have equal weights, which no order changes. Other rows of the same tensor have ties that an omitted "
    "order might decide, and the limit counts all rows of such a tensor whose keys have unequal values.",
    "openai-gpt": "Repeated words have equal leading scores in layer 2. The next order of these scores is incomplete, "
    "because earlier layers omit lower orders of functions whose leading term is 0 in some elements.",
}


def worst(records: list[dict[str, Any]]) -> str:
    return min((r["outcome"] for r in records), key=OUTCOMES.index, default="–")


def cell(records: list[dict[str, Any]]) -> str:
    """Return the worst outcome, and in how many settings it occurs."""
    if not records:
        return "–"
    outcome = worst(records)
    count = sum(r["outcome"] == outcome for r in records)
    return outcome if count == len(records) else f"{outcome} in {count} of {len(records)}"


def line(name: str, records: list[dict[str, Any]]) -> str:
    by_column = {column: [r for r in records if r["dtype"] == column] for column in COLUMNS}
    wide = by_column["float64"]
    first = next((r for r in wide if "degree" in r), {})
    flagged = len(right_but_flagged(records))
    cells = [
        f"`{name}`",
        next((f"`{r['class']}`" for r in records if "class" in r), "–"),
        first.get("degree", "–"),
        f"{first['vanished']} of {first['parameters']}" if first else "–",
        *(cell(by_column[column]) for column in COLUMNS),
        f"{flagged} of {len(wide)}" if flagged else "–",
    ]
    return "| " + " | ".join(cells) + " |"


def right_but_flagged(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [r for r in records if r["dtype"] == "float64" and r["outcome"] == "right" and r.get("doubtful")]


def flags(models: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return rows: architectures that are right but flagged, the number of doubtful values, the reason."""
    return [
        f"| `{name}` | {len(found)} | {max(r['doubtful'] for r in found):,} | {FLAGGED.get(name, 'not explained')} |"
        for name, records in models.items()
        if (found := right_but_flagged(records))
    ]


def reasons(models: dict[str, list[dict[str, Any]]], outcomes: tuple[str, ...]) -> list[str]:
    """Return rows: architectures with these outcomes, their columns, the reason."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for name, records in models.items():
        for record in records:
            if record["outcome"] in outcomes:
                why = record.get("reason", "").split("\n")[0].replace("|", "\\|")[:160]
                names, columns = found.setdefault(why, ([], []))
                for item, items in ((f"`{name}`", names), (COLUMNS[record["dtype"]], columns)):
                    if item not in items:
                        items.append(item)
    rows = sorted(found.items(), key=lambda item: item[1])
    return [f"| {', '.join(names)} | {', '.join(columns)} | {why} |" for why, (names, columns) in rows]


def measured_last(result: dict[str, Any]) -> str:
    """Return which columns were measured with the code of the float64 column, or later; the others are older."""
    codes = {name: done for name, done in result["done"].items() if "float64" in done}
    newest = Counter(done["float64"] for done in codes.values()).most_common(1)[0][0]
    older = Counter(done["bfloat16"] for done in codes.values() if "bfloat16" in done).most_common(1)[0][0]
    counts = [
        f"{label}: {sum(done.get(column) not in (None, older) or older == newest for done in codes.values())}"
        for column, label in COLUMNS.items()
    ]
    return f"Architectures measured with the newest rules, of {len(codes)}: {', '.join(counts)}."


def page(result: dict[str, Any]) -> str:
    models: dict[str, list[dict[str, Any]]] = {}
    for record in result["records"]:
        models.setdefault(record["architecture"], []).append(record)
    models = dict(sorted(models.items()))
    counts = {
        column: Counter(worst([r for r in records if r["dtype"] == column]) for records in models.values())
        for column in COLUMNS
    }
    summary = [
        f"| {outcome} | " + " | ".join(str(counts[column][outcome]) for column in COLUMNS) + " |"
        for outcome in (
            "right",
            "converging",
            "not verified",
            "refused",
            "undecided",
            "wrong",
            "crashed",
            "not built",
        )
    ]
    titles = ["architecture", "class", "degree", "vanish", *COLUMNS.values(), "flagged"]
    table = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    table += [line(name, records) for name, records in models.items()]
    return f"""# Architectures

This page compares the exact saturated limit, `normgrowth.saturated(model)`, with the scaled network (parameters
multiplied by c), for all {len(models)} text architectures of transformers {result["transformers"]}, with torch
{result["torch"]}. `make census` builds each architecture with a small random config in float64 and compares
every output of the model, at c = 10 to 1e7.

Each architecture has four settings: 2 layers with perturbed biases, gains and buffers, 4 experts; 2 layers as
initialized, 8 experts; 4 layers perturbed, 8 experts; 4 layers as initialized, 4 experts. Models of 2 layers run with
eager attention, models of 4 layers with torch's attention if they support it. 16 bits and autocast are measured with
the first and the last of these settings. The table counts an architecture by its worst setting.

{measured_last(result)}
The records of the others are older.

| outcome | {" | ".join(COLUMNS.values())} |
|---|{"---|" * len(COLUMNS)}
{chr(10).join(summary)}

- **right**: at the best c, 1 − cosine of every position is at most 1e-4 and the relative error at most 1e-2. In 16
  bits and under autocast, the reference is the float64 limit of the same rounded weights, and the cosine is at least
  0.999.
- **converging**: not right at c = 1e7, but the error falls with every factor of 10.
- **not verified**: the scaled network gives no numbers to compare with (overflow, 0/0) in some output.
- **refused**: the limit raises an error with the reason (below).
- **undecided**: not right, and the limit reports it: `limit.doubtful` counts values that depend on a tie which none of
  the computed orders decides; in 16 bits, `limit.findings` may list coefficients outside the range of the dtype, or
  finite masks, whose value the network chooses according to its dtype.
- **wrong**: not right, and the limit does not report it.
- **not built**: transformers cannot run the small model in this type, or with its parameters multiplied by c.

Routers select experts by values that float64 rounds to equal numbers at large c (sigmoids near 1, shares near 0). If
the scaled network disagrees with the limit, or divides 0 by 0 because all chosen values vanish, it is run again with
another sigmoid and another softmax over experts. They have the same limits and the same order, but reach the limits so
slowly that float64 still tells the values apart. A NaN agrees with nothing.

The tests in `tests/limit/test_architectures.py` compare every output of every submodule of 48 models, including vision
models and modules of torch, with tighter bounds.

## Every architecture

{chr(10).join(table)}

- **degree**: k in lim c^(−k) f(x; cθ). **vanish**: parameters that the output does not depend on in the limit.
- **flagged**: settings that are right in float64 although the limit reports doubtful values.

## Right but flagged

A flag is a warning that may be unnecessary: the limit counts values that depend on a tie which an omitted order might
decide. More orders do not remove these flags.

| architecture | settings | doubtful values, at most | reason |
|---|---|---|---|
{chr(10).join(flags(models))}

## Refused

| architectures | columns | reason |
|---|---|---|
{chr(10).join(reasons(models, ("refused",)))}

## Not built, or crashed

| architectures | columns | reason |
|---|---|---|
{chr(10).join(reasons(models, ("not built", "crashed")))}

`python benchmarks/census.py --page` makes this page from `benchmarks/census.json`.
"""
