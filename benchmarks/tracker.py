"""Measure what a NormTracker costs, beside clone and difference, wandb.watch, cockpit and traintools.

python benchmarks/tracker.py               measure; write tracker.json and the table in docs/tracker.md
python benchmarks/tracker.py --rounds N    other numbers of rounds, of PAIRS pairs of steps each
python benchmarks/tracker.py --again       drop what an earlier run measured
python benchmarks/tracker.py --pages       make the table again

Each variant runs in processes of its own, in which its steps alternate with steps without anything; the variants take
turns. (In one process for all, what one variant leaves behind changes the cost of the next: memory that was released
is taken from the system again.) Times are CPU seconds of the process, since other processes may run on the machine.
Memory is that of a process that runs only this variant, minus that of a process that only trains: the peak of the
resident memory, and the private memory, which no other process shares. Results are saved after each process: an
interrupted run continues where it was.

cockpit and traintools are measured if they can be imported. They need other versions of common packages, so install
them into a folder of their own::

    pip install --target PEERS --no-deps cockpit-for-pytorch==1.0.2 backpack-for-pytorch json-tricks einops unfoldNd \
        seaborn "setuptools<81" traintools==0.6.2
    PYTHONPATH=PEERS python benchmarks/tracker.py
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages import DOCS, fill
from pages import table as table_of
from torch import nn

from normgrowth import NormTracker

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "tracker.json"
MODELS: dict[str, dict[str, Any]] = {
    "12 layers of 768": {"size": (12, 768, 12, 30_000), "batch": (4, 128), "rounds": 4, "goal": 0.04},
    "4 layers of 128": {"size": (4, 128, 4, 4_000), "batch": (16, 64), "rounds": 4, "goal": 0.05},
}
NOTHING, TRACKER = "nothing", "tracker"
CLONES = {"clone, float32": torch.float32, "clone, float64": torch.float64}
WANDB, COCKPIT, TRAINTOOLS = "wandb.watch", "cockpit", "traintools"
VARIANTS = (NOTHING, TRACKER, *CLONES, WANDB, COCKPIT, TRAINTOOLS)
GOAL_EVERY_10, GOAL_MEMORY = 0.01, 60  # fraction of a step; MB beyond the model and a copy of its weights
LOG_STEPS = (1_000, 10_000, 100_000)
GOAL_LOG_MS, GOAL_LOG_SECONDS, GOAL_LOG_MB = 5, 2, 100
PAIRS = {"12 layers of 768": 3, "4 layers of 128": 30}  # of steps of a variant and of steps without anything
WARMUP, PEAK_STEPS, HOOK_CALLS = 2, 3, 10_000

Step = Callable[[], Any]


class Training:
    """A model, its optimizer and a batch; a step in three parts, between which a variant can act."""

    def __init__(self, name: str) -> None:
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
        self.model = BertForMaskedLM(config)
        self.ids = torch.randint(words, MODELS[name]["batch"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.01)

    def loss(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        return self.model(input_ids=self.ids, labels=self.ids).loss

    def step(self) -> None:
        self.loss().backward()
        self.optimizer.step()


@contextmanager
def plain(training: Training, folder: str) -> Iterator[Step]:  # noqa: ARG001
    yield training.step


@contextmanager
def tracked(training: Training, folder: str) -> Iterator[Step]:
    """One tracker for all rounds, which measures the steps of its own turns."""
    turn = [False]

    def step() -> None:
        turn[0] = True
        training.step()
        turn[0] = False

    with NormTracker(
        training.model, training.optimizer, every=lambda _: turn[0], include="all", out=Path(folder) / "norms"
    ):
        yield step


@contextmanager
def cloned(training: Training, folder: str, dtype: torch.dtype) -> Iterator[Step]:  # noqa: ARG001
    """The straightforward code: copy all weights, and after the step compute five numbers per tensor."""

    def step() -> None:
        training.loss().backward()
        with torch.no_grad():
            before = {name: p.detach().clone() for name, p in training.model.named_parameters()}
            training.optimizer.step()
            for name, p in training.model.named_parameters():
                old, new = before[name].to(dtype).flatten(), p.to(dtype).flatten()
                delta = new - old
                _ = {
                    "norm": new.norm().item(),
                    "step": delta.norm().item(),
                    "cosine": (new @ old / new.norm() / old.norm()).item(),
                    "alignment": (delta @ old / delta.norm() / old.norm()).item(),
                    "gradient": p.grad.to(dtype).norm().item() if p.grad is not None else 0.0,
                }

    yield step


@contextmanager
def watched(training: Training, folder: str) -> Iterator[Step]:
    import wandb

    run = wandb.init(project="benchmark", dir=folder, mode="offline", settings=wandb.Settings(silent=True))

    def step() -> None:
        run.watch(training.model, log="all", log_freq=1)
        training.step()
        run.log({})
        run.unwatch(training.model)

    try:
        yield step
    finally:
        run.finish()


@contextmanager
def in_cockpit(training: Training, folder: str) -> Iterator[Step]:  # noqa: ARG001
    """Cockpit's norm of the gradient, size of the update and distance from the start, at every step."""
    from cockpit import Cockpit, quantities  # pyright: ignore[reportMissingImports]
    from cockpit.utils import schedules  # pyright: ignore[reportMissingImports]

    every = schedules.linear(1)
    kinds = (quantities.GradNorm, quantities.UpdateSize, quantities.Distance)
    cockpit = Cockpit(training.model.parameters(), [kind(every) for kind in kinds])
    count = iter(range(10**9))

    def step() -> None:
        loss = training.loss()
        info = {"batch_size": len(training.ids), "loss": loss, "optimizer": training.optimizer}
        with cockpit(next(count), info={**info, "individual_losses": None}):
            loss.backward()
        training.optimizer.step()

    yield step


@contextmanager
def in_traintools(training: Training, folder: str) -> Iterator[Step]:  # noqa: ARG001
    """The norms of gradients and weights of each tensor; the size of an update is estimated from them."""
    from traintools import GradientHealthMonitor  # pyright: ignore[reportMissingImports]

    monitor = GradientHealthMonitor()

    def step() -> None:
        training.loss().backward()
        monitor.inspect(training.model, lr=1e-4)
        training.optimizer.step()

    yield step


MADE: dict[str, Callable[[Training, str], Any]] = {
    NOTHING: plain,
    TRACKER: tracked,
    **{name: partial(cloned, dtype=dtype) for name, dtype in CLONES.items()},
    WANDB: watched,
    COCKPIT: in_cockpit,
    TRAINTOOLS: in_traintools,
}


def absent() -> dict[str, str]:
    """The variants that cannot be measured here, and why."""
    found = {}
    for name in (WANDB, COCKPIT, TRAINTOOLS):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", f"import {name.partition('.')[0]}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            found[name] = done.stderr.strip().splitlines()[-1]
    return found


def run_child(*arguments: str) -> Any:
    """Run this file in a process of its own, and return what it prints."""
    command = [sys.executable, "-W", "ignore", __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def time_rounds(name: str, rounds: int, state: dict[str, Any], save: Callable[[], None]) -> None:
    """Add rounds to the seconds of each variant, in `state`, until it has this many."""
    known: dict[str, list[list[Any]]] = state.setdefault("pairs", {})
    for number in range(rounds):
        for v in (v for v in VARIANTS if v not in state["absent"]):
            if len(known.setdefault(v, [])) == number:
                known[v].append(run_child("--pairs", name, v))
                save()
                print(f"{name}: round {number + 1} of {rounds}: {v}", file=sys.stderr, flush=True)
    training = Training(name)
    training.step()
    parameters = list(training.model.parameters())
    state["parameters"] = sum(p.numel() for p in parameters)
    state["weights_mb"] = sum(p.numel() * p.element_size() for p in parameters) / 2**20
    state["hook_seconds"] = hook_seconds(training)
    save()


def print_pairs(name: str, v: str) -> None:
    """Print the CPU seconds of steps without anything and of steps of a variant, which alternate."""
    training = Training(name)
    pairs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder, MADE[v](training, folder) as step:
        for i in range(WARMUP + PAIRS[name]):
            plain_first = i % 2 == 0
            seconds: dict[bool, float] = {}
            for is_plain in (plain_first, not plain_first):
                start = time.process_time()
                (training.step if is_plain else step)()
                seconds[is_plain] = round(time.process_time() - start, 6)
            pairs.append((seconds[True], seconds[False]))
    print(json.dumps(pairs[WARMUP:]))


def hook_seconds(training: Training) -> float:
    """Return the seconds that a tracker takes at an unmeasured step: too short to see in the time of a whole step."""
    model, optimizer = training.model, training.optimizer
    with NormTracker(model, optimizer, every=lambda step: step > 10 * HOOK_CALLS, include="all"):
        (before,) = optimizer._optimizer_step_pre_hooks.values()
        (after,) = optimizer._optimizer_step_post_hooks.values()
        before(optimizer, (), {})  # the first call records step 0
        after(optimizer, (), {})
        start = time.process_time()
        for _ in range(HOOK_CALLS):
            before(optimizer, (), {})
            after(optimizer, (), {})
        return (time.process_time() - start) / HOOK_CALLS


def measure_memory(name: str, state: dict[str, Any], save: Callable[[], None]) -> None:
    """Add the memory in MB of one process per variant to `state`."""
    known = state.setdefault("memory", {})
    for v in VARIANTS:
        if v not in known and v not in state["absent"]:
            known[v] = run_child("--peak", name, v)
            save()
            print(f"{name}: memory of {v}: {known[v]}", file=sys.stderr, flush=True)


def print_peak(name: str, v: str) -> None:
    """Print the peak of the resident memory, and the largest private memory between steps or after the end."""
    training, private = Training(name), list[float]()
    with tempfile.TemporaryDirectory() as folder, MADE[v](training, folder) as step:
        for _ in range(PEAK_STEPS):
            step()
            private.append(status("RssAnon"))
    private.append(status("RssAnon"))
    # Not getrusage: its peak includes that of the parent process.
    print(json.dumps({"peak": status("VmHWM"), "private": max(private)}))


def status(field: str) -> float:
    """Return a field of this process's memory in MB."""
    return int(re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024


def log_growth(count: int) -> dict[str, float]:
    """Measure the cost of a run's log after this many measured steps of a model with 100 tensors."""
    from normgrowth.tracking.log.step_log import StepLog
    from normgrowth.workspace import FolderUse

    model = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(50))})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        tracker = NormTracker(model, optimizer, every=1, out=folder, warn=False)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        rows, seconds, before = tracker._steps.latest, np.zeros(count), status("VmRSS")
        assert rows is not None
        for i in range(count):
            start = time.process_time()
            tracker._log.append(i + 2, rows)
            seconds[i] = time.process_time() - start
        grown = status("VmRSS") - before
        selection = use.request if (use := FolderUse.read(Path(folder))) else None
        start = time.process_time()
        tracker.close()
        closed = time.process_time() - start
        start = time.process_time()
        again = StepLog.open(folder, count, selection)
        resumed = time.process_time() - start
        again.close()
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return {
        "median_ms": 1e3 * float(np.median(seconds)),
        "slowest_ms": 1e3 * float(seconds.max()),
        "close_seconds": closed,
        "resume_seconds": resumed,
        "memory_mb": grown,
        "disk_mb": size / 2**20,
    }


def measure(rounds: int | None, again: bool) -> None:
    results: dict[str, Any] = {}
    if RESULTS.exists() and not again:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    if not all("pairs" in state for state in results.get("models", {}).values()):
        results = {"models": {}, "log": {}}

    def save() -> None:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    missing = absent()
    for name, model in MODELS.items():
        state = results["models"].setdefault(name, {})
        state["absent"] = missing
        wanted = rounds or model["rounds"]
        time_rounds(name, wanted, state, save)
        measure_memory(name, state, save)
    for count in LOG_STEPS:
        if str(count) not in results["log"]:
            results["log"][str(count)] = log_growth(count)
            save()


def ratios(state: dict[str, Any], v: str) -> list[float]:
    """Return the step of the variant relative to the step without anything beside it, less 1, for all pairs."""
    return [step / plain - 1 for pairs in state["pairs"][v] for plain, step in pairs]


def overhead(state: dict[str, Any], v: str) -> float:
    return statistics.median(ratios(state, v))


def plain_seconds(state: dict[str, Any]) -> float:
    """Return the median CPU seconds of a step without anything."""
    found = state["pairs"].values()
    return statistics.median(plain for rounds in found for pairs in rounds for plain, _ in pairs)


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:+.{digits}f}%"


def overhead_table(models: dict[str, Any]) -> str:
    rows: list[list[str]] = []

    def row(title: str, cell: Callable[[str, dict[str, Any]], str], goal: str = "") -> None:
        rows.append([title, *(cell(name, state) for name, state in models.items()), goal])

    def unmeasured(state: dict[str, Any]) -> float:
        return state["hook_seconds"] / plain_seconds(state)

    def of(v: str) -> Callable[[str, dict[str, Any]], str]:
        def cell(_: str, s: dict[str, Any]) -> str:
            if v not in s["pairs"]:
                return "–"
            low, middle, high = statistics.quantiles(ratios(s, v), n=4)
            return f"{percent(middle)} ({100 * low:.1f} to {100 * high:.1f})"

        return cell

    def memory(v: str, kind: str, copies: int = 0) -> Callable[[str, dict[str, Any]], str]:
        def cell(_: str, s: dict[str, Any]) -> str:
            if v not in s["memory"]:
                return "–"
            more = s["memory"][v][kind] - s["memory"][NOTHING][kind]
            return f"{more - copies * s['weights_mb']:+,.0f} MB"

        return cell

    goals = " / ".join(f"{100 * MODELS[name]['goal']:.0f}%" for name in models)
    row("parameters", lambda _, s: f"{s['parameters'] / 1e6:.1f} M")
    row("a step without anything", lambda _, s: f"{1000 * plain_seconds(s):,.0f} ms")
    row("pairs of steps", lambda _, s: str(len(ratios(s, TRACKER))))
    row("tracker, step not measured", lambda _, s: percent(unmeasured(s), 4))
    row(
        "tracker, every=10",
        lambda _, s: percent((9 * unmeasured(s) + overhead(s, TRACKER)) / 10, 2),
        f"under {100 * GOAL_EVERY_10:.0f}%",
    )
    row("tracker, every=1", of(TRACKER), f"at most {goals}")
    row("nothing, against itself", of(NOTHING))
    titles = {
        "clone, float32": "clone and difference in float32, every step",
        "clone, float64": "clone and difference in float64, every step",
        WANDB: '`wandb.watch(log="all")`, every step',
        COCKPIT: "cockpit (gradient norm, update size, distance), every step",
        TRAINTOOLS: "traintools (norms of gradients and weights), every step",
    }
    for v, title in titles.items():
        row(title, of(v))
    row("weights", lambda _, s: f"{s['weights_mb']:,.0f} MB")
    row("peak of memory, more than without: tracker", memory(TRACKER, "peak"))
    row("private memory, more than without: tracker", memory(TRACKER, "private"))
    row(
        "the same, without its copy of the weights",
        memory(TRACKER, "private", copies=1),
        f"at most {GOAL_MEMORY} MB",
    )
    for v in titles:
        row(f"peak of memory, more than without: {v}", memory(v, "peak"))
    text = table_of(["", *models, "goal"], rows)
    reasons = {v: why for state in models.values() for v, why in state["absent"].items()}
    return text + "".join(
        f"\n\n{v} was not measured: it cannot be imported ({why})." for v, why in reasons.items()
    )


def log_table(log: dict[str, dict[str, float]]) -> str:
    titles = ["measured steps", *(f"{int(count):,}" for count in log), "goal"]
    rows = [
        ["append a step, median", *(f"{s['median_ms']:.3f} ms" for s in log.values()), ""],
        ["append a step, slowest", *(f"{s['slowest_ms']:.1f} ms" for s in log.values()), f"{GOAL_LOG_MS} ms"],
        ["close", *(f"{s['close_seconds']:.2f} s" for s in log.values()), f"{GOAL_LOG_SECONDS} s"],
        ["resume", *(f"{s['resume_seconds']:.2f} s" for s in log.values()), f"{GOAL_LOG_SECONDS} s"],
        ["growth of memory", *(f"{s['memory_mb']:.1f} MB" for s in log.values()), f"under {GOAL_LOG_MB} MB"],
        ["size on disk", *(f"{s['disk_mb']:,.0f} MB" for s in log.values()), ""],
    ]
    return table_of(titles, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--pairs", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.peak:
        print_peak(*given.peak)
        return
    if given.pairs:
        print_pairs(*given.pairs)
        return
    warnings.simplefilter("ignore")
    if not given.pages:
        measure(given.rounds, given.again)
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    tables = {"overhead": overhead_table({name: s for name, s in results["models"].items() if "memory" in s})}
    tables |= {"log": log_table(results["log"])} if results["log"] else {}
    fill(DOCS / "tracker.md", tables)


if __name__ == "__main__":
    main()
