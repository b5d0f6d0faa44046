"""Run all benchmarks; write results.json and docs/benchmarks.md.

python benchmarks/run.py         run all benchmarks
python benchmarks/run.py limit   measure only the cost of the limit; keep the other figures; resumes
python benchmarks/run.py pages   make the pages again from results.json
"""

import json
import os
import platform
import shutil
import sys
from typing import Any

import command
import limit_cost
import moments
from pages import ROOT

from normgrowth.engine import available_cores

RESULTS = ROOT / "benchmarks" / "results.json"

# The goals: name of the figure, bound, description on the page.
GOALS = [
    ("speedup over straightforward numpy", ">=", 30, "speedup of the kernel over plain numpy code in float64"),
    ("rate relative to a plain sum of the bytes", ">=", 0.8,
     "throughput of the kernel relative to a plain sum over the same mapped bytes"),
    ("bfloat16 rate per byte relative to float32", ">=", 0.6,
     "throughput per byte of the kernel on bfloat16 relative to float32"),
    ("faster than torch in chunks", ">=", 1, "speedup of the kernel over the same sums in torch, in chunks"),
    ("faster than weightlens takes for one of the two", ">=", 5,
     "speedup of the whole command on two files over weightlens on one file"),
    ("20,000 small tensors against one, pair of 2000 MB, trace", "<=", 3,
     "time for 20,000 tensors relative to one tensor, trace of a pair of 2 GB"),
    ("20,000 small tensors against one, pair of 430 MB, command", "<=", 3,
     "the same, whole command on a pair of 430 MB"),
    ("time for twice the bytes", "<=", 2.3, "time for twice the bytes, relative to once"),
    ("anonymous memory, pair of 2 GB: MB", "<=", 300,
     "peak memory for two checkpoints of 2 GB, without mapped files, in MB"),
    *((f"limit of {name}, one order: processor time against a plain pass", "<=", 1.25,
       f"exact limit of {name}: processor time relative to a plain pass")
      for name in ("BERT-base", "GPT-2 small", "Llama of 100M", "T5 encoder base")),
    ("limit of MPNet, three orders: processor time against a plain pass", "<=", 3, "the same for MPNet, three orders"),
    ("limit of 11 tiny models, median: processor time against a plain pass", "<=", 8,
     "the same, median of 11 tiny models"),
    ("limit of BERT-base, 2,048 tokens, eager attention, one order: peak memory against a plain pass", "<=", 1.5,
     "exact limit of BERT-base, 2,048 tokens, eager attention: peak memory relative to a plain pass"),
    ("limit of BERT-base, 2,048 tokens, fused attention, one order: peak memory against a plain pass", "<=", 1.5,
     "the same, fused attention"),
]  # fmt: skip


# Why a goal is missed: figure, and the explanation, with the figures of the run.
REASONS = [
    ("limit of MPNet, three orders: processor time against a plain pass",
     "Three orders of MPNet take {0:.3g} plain passes, because nearly all rows of its attention tie and every\n"
     "tensor has lower orders. A product of two such tensors takes a product for each pair of orders whose degree is\n"
     "still needed: {1:.0f} matrix products instead of {2:.0f}, with {3:.3g} times the multiplications.",
     ("processor time against a plain pass", "matrix products", "matrix products of a plain pass",
      "multiplications against a plain pass")),
]  # fmt: skip


def reasons(figures: dict[str, float]) -> str:
    """A paragraph for each goal that is missed and has an explanation."""
    missed = {
        name for name, sign, goal, _ in GOALS
        if name in figures and (figures[name] < goal if sign == ">=" else figures[name] > goal)
    }  # fmt: skip
    found = []
    for name, words, keys in REASONS:
        values = [figures.get(f"{name.rpartition(': ')[0]}: {key}") for key in keys]
        if name in missed and None not in values:
            found.append(words.format(*values))
    return "\n\n".join(found)


def circumstances(results: dict[str, Any]) -> str:
    paragraphs = [reasons(results["figures"])]
    if "load" in results:
        paragraphs.insert(
            0,
            f"The load of the machine was {results['load']:.1f} before the limit was measured. Processor time is\n"
            "compared, because the clock includes the time of other work.",
        )
    return "".join(f"{paragraph}\n\n" for paragraph in paragraphs if paragraph)


def load() -> float:
    """The load of the machine by other work, before the measurement."""
    return os.getloadavg()[0]


def table(results: dict[str, Any]) -> str:
    figures = results["figures"]
    lines = ["| what | measured | goal |", "|---|---|---|"]
    for name, sign, goal, words in GOALS:
        if name in figures:
            lines.append(f"| {words} | {figures[name]:.3g} | {'≥' if sign == '>=' else '≤'} {goal:g} |")
    return "\n".join(lines)


def page(results: dict[str, Any]) -> str:
    every = "\n".join(f"| {name} | {value:.3g} |" for name, value in results["figures"].items())
    return f"""# Benchmarks

This page is made from `benchmarks/results.json`, which `make bench` writes. Each figure with a goal, except memory in
MB, is a ratio of two measurements that alternate in one run; absolute times depend on the machine
({results["machine"]}, {results["cores"]} cores).

{table(results)}

{circumstances(results)}## All figures

| figure | value |
|---|---|
{every}
"""


def write_pages(results: dict[str, Any]) -> None:
    (ROOT / "docs" / "benchmarks.md").write_text(page(results), encoding="utf-8")


def main() -> None:
    if sys.argv[1:]:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
        if sys.argv[1:] == ["limit"]:
            results["load"] = load()
            results.pop("note", None)
            kept = {
                name: value for name, value in results["figures"].items() if not name.startswith("limit of")
            }
            results["figures"] = kept | limit_cost.measured()
    else:
        scratch = ROOT / "benchmarks" / "scratch"
        busy = load()
        try:
            figures = {**moments.run(scratch), **command.run(scratch), **limit_cost.measured()}
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        machine = f"{platform.system()} {platform.machine()}"
        results = {"figures": figures, "machine": machine, "cores": available_cores(), "load": busy}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_pages(results)
    print(table(results))


if __name__ == "__main__":
    main()
