"""Measure the overhead of a NormTracker, compared with wandb.watch(log="all") and with a manual clone and difference.

python benchmarks/tracker.py          measure; write tracker.json and the table in docs/tracker.md
python benchmarks/tracker.py pages    make the table again
python benchmarks/tracker.py log [N]  the log of a run with 100 tensors: time per append, close and resume against the
                                      number of measured steps, up to N (100,000)

The variants alternate on the same model, one step each per round, so that other load affects all of them alike. Memory
is the peak of a process that runs only this variant, minus the peak of a process that only trains.
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from normgrowth import NormTracker

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "tracker.json"
MODELS: dict[str, dict[str, Any]] = {
    "12 layers of 768": {"size": (12, 768, 12, 30_000), "batch": (4, 128), "rounds": 12},
    "4 layers of 128": {"size": (4, 128, 4, 4_000), "batch": (16, 64), "rounds": 300},
}
VARIANTS = (
    "nothing",
    "tracker, step measured",
    "clone and difference",
    "wandb.watch",
)


def build(name: str) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    from transformers import BertConfig, BertForMaskedLM

    layers, width, heads, words = MODELS[name]["size"]
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        vocab_size=words,
    )
    model = BertForMaskedLM(config)
    ids = torch.randint(words, MODELS[name]["batch"])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01), ids


def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()


@contextmanager
def variant(
    name: str, model: nn.Module, optimizer: torch.optim.Optimizer, folder: str
) -> Iterator[Callable[..., None]]:
    """Yield a function that takes one step with this variant."""
    if name.startswith("tracker"):
        with NormTracker(
            model, optimizer, every=1, include="all", out=Path(folder) / f"norms-{time.time_ns()}"
        ):
            yield step
    elif name == "clone and difference":
        yield cloned
    elif name == "wandb.watch":
        import wandb

        run = wandb.init(
            project="benchmark", dir=folder, mode="offline", settings=wandb.Settings(silent=True)
        )
        run.watch(model, log="all", log_freq=1)

        def logged(*parts: Any) -> None:
            step(*parts)
            run.log({})

        try:
            yield logged
        finally:
            run.unwatch(model)
            run.finish()
    else:
        yield step


def cloned(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
    """The straightforward code: copy all weights, and after the step compute five numbers per tensor in float64."""
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    with torch.no_grad():
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer.step()
        for name, p in model.named_parameters():
            old, new = before[name].double().flatten(), p.double().flatten()
            delta = new - old
            _ = {
                "norm": new.norm().item(),
                "step": delta.norm().item(),
                "cosine": (new @ old / new.norm() / old.norm()).item(),
                "alignment": (delta @ old / delta.norm() / old.norm()).item(),
                "gradient": p.grad.double().norm().item() if p.grad is not None else 0.0,
            }


def times(name: str) -> dict[str, list[float]]:
    """Return the seconds of each variant per round. wandb starts a process, so it stays on for a block of rounds."""
    model, optimizer, ids = build(name)
    found: dict[str, list[float]] = {v: [] for v in VARIANTS}
    rounds = MODELS[name]["rounds"]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            step(model, optimizer, ids)
        for number in range(rounds):
            turn = number % (
                len(VARIANTS) - 1
            )  # rotate the order, so that cache contents affect all variants alike
            for v in (*VARIANTS[turn:-1], *VARIANTS[:turn]):
                with variant(v, model, optimizer, folder) as run:
                    start = time.perf_counter()
                    run(model, optimizer, ids)
                    found[v].append(time.perf_counter() - start)
            print(f"{name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        with variant(VARIANTS[-1], model, optimizer, folder) as run:
            for _ in range(min(rounds, 20)):
                start = time.perf_counter()
                run(model, optimizer, ids)
                found[VARIANTS[-1]].append(time.perf_counter() - start)
    return found


def hook_seconds(name: str) -> float:
    """Return the seconds of a tracker at an unmeasured step, timed alone: they are too few to show in whole steps."""
    model, optimizer, _ = build(name)
    with NormTracker(model, optimizer, every=lambda _: False, include="all"):
        (before,) = optimizer._optimizer_step_pre_hooks.values()
        (after,) = optimizer._optimizer_step_post_hooks.values()
        start = time.perf_counter()
        for _ in range(10_000):
            before(optimizer, (), {})
            after(optimizer, (), {})
        return (time.perf_counter() - start) / 10_000


def memory(name: str) -> dict[str, float]:
    """Return the peak resident memory in MB of one process per variant."""
    found = {}
    for v in VARIANTS:
        command = [sys.executable, __file__, "--peak", name, v]
        found[v] = float(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
        )
    return found


def peak(name: str, v: str) -> None:
    model, optimizer, ids = build(name)
    with tempfile.TemporaryDirectory() as folder, variant(v, model, optimizer, folder) as run:
        for _ in range(3):
            run(model, optimizer, ids)
    # Not getrusage: its peak includes that of the parent process.
    print(int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024)


def measure() -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in MODELS:
        seconds = times(name)
        base = seconds["nothing"]
        ratio = {
            v: statistics.median(a / b for a, b in zip(s, base[-len(s) :], strict=True)) - 1
            for v, s in seconds.items()
        }
        measured, unmeasured = ratio["tracker, step measured"], hook_seconds(name) / statistics.median(base)
        used = memory(name)
        model, _, _ = build(name)
        results[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "weights_mb": sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20,
            "step_seconds": statistics.median(base),
            "overhead": ratio,
            "step not measured": unmeasured,
            "every 10": (9 * unmeasured + measured) / 10,
            "every 1": measured,
            "memory_mb": {v: used[v] - used["nothing"] for v in VARIANTS if v != "nothing"},
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return results


def table(results: dict[str, Any]) -> str:
    names = list(results)
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(names)]

    def row(title: str, cell: Callable[[dict[str, Any]], str]) -> None:
        lines.append(f"| {title} | {' | '.join(cell(results[name]) for name in names)} |")

    row("parameters", lambda r: f"{r['parameters'] / 1e6:.1f} M")
    row("a step without anything", lambda r: f"{1000 * r['step_seconds']:,.0f} ms")
    row("tracker, step not measured", lambda r: f"{100 * r['step not measured']:+.4f} %")
    row("tracker, every=10 (goal: under 2 %)", lambda r: f"{100 * r['every 10']:+.1f} %")
    row("tracker, every=1 (goal: under 15 %)", lambda r: f"{100 * r['every 1']:+.1f} %")
    row("clone and difference, every step", lambda r: f"{100 * r['overhead']['clone and difference']:+.0f} %")
    row('`wandb.watch(log="all")`, every step', lambda r: f"{100 * r['overhead']['wandb.watch']:+.0f} %")
    row("weights", lambda r: f"{r['weights_mb']:,.0f} MB")
    for v, words in (
        ("tracker, step measured", "memory more than without: tracker"),
        ("clone and difference", "clone and difference"),
        ("wandb.watch", "`wandb.watch`"),
    ):
        row(words, lambda r, v=v: f"{r['memory_mb'][v]:+,.0f} MB")
    return "\n".join(lines)


def write(results: dict[str, Any]) -> None:
    from pages import DOCS, fill

    fill(DOCS / "tracker.md", {"overhead": table(results)})


def log(most: int) -> None:
    """Measure the cost of a run's log after this many measured steps of a model with 100 tensors."""
    from normgrowth.tracking.log.step_log import StepLog

    model = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(50))})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print(
        f"{'steps':>9} {'median':>9} {'slowest':>9} {'close':>9} {'resume':>9} {'memory':>9} {'on disk':>9}"
    )
    count = min(1000, most)
    while count <= most:
        with tempfile.TemporaryDirectory() as folder:
            tracker = NormTracker(model, optimizer, every=1, out=folder, warn=False)
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
            rows, seconds, before = tracker._latest, np.zeros(count), resident()
            assert rows is not None
            for i in range(count):
                start = time.perf_counter()
                tracker._log.append(i + 2, rows)
                seconds[i] = time.perf_counter() - start
            grown = resident() - before
            start = time.perf_counter()
            tracker.close()
            closed = time.perf_counter() - start
            start = time.perf_counter()
            again = StepLog.open(folder, count)
            resumed = time.perf_counter() - start
            again.close()
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        print(
            f"{count:9,} {1e3 * np.median(seconds):6.3f} ms {1e3 * seconds.max():6.2f} ms {closed:7.2f} s "
            f"{resumed:7.2f} s {grown:6.1f} MB {size / 2**20:6.0f} MB",
            flush=True,
        )
        count *= 10


def resident() -> float:
    """Return the resident memory of this process in MB."""
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024


def main() -> None:
    if sys.argv[1:2] == ["log"]:
        log(int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
        return
    if sys.argv[1:2] == ["--peak"]:
        peak(*sys.argv[2:4])
        return
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if "pages" in sys.argv else measure()
    write(results)


if __name__ == "__main__":
    main()
