"""What the net holds: for each group a function that measures it through the adapter, and how exactly it must agree.

A group returns plain values by name. `numbers.json` has the values that it must return; `record.py` writes them.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import fsum, isfinite, sqrt
from pathlib import Path
from typing import Any

import torch
from net import adapter, inputs
from net.adapter import Numbers, Rows
from torch import Tensor

LAGS = (2, 4)
SCHEDULE = "cosine:lr=0.01,steps=400,warmup=50,end=0.001"
# Rounded once, correctly, from sums that are exact: the same bits on every CPU.
EXACT = (
    "norm", "rms", "largest", "numel", "nonfinite", "step_size", "relative_step", "alignment", "radial", "tangential",
    "growth", "growth_alignment", "growth_steps", "share_alignment", "share_steps", "total_growth",
    "total_growth_alignment", "total_growth_steps", "total_share_alignment", "total_share_steps", "tokens",
)  # fmt: skip
ANGLES = ("cosine", "angle")  # arctangents differ in the last bit from one numpy to another
LAST = inputs.EVERY * (inputs.COUNT - 1)
NETWORK_SCALE = 1000.0


# --- checkpoints -----------------------------------------------------------------------------------


def moments(folder: Path) -> Numbers:
    """The sums themselves, of two tensors (float32 and float16) and over all."""
    found = adapter.sums(inputs.write(folder, inputs.walk(6)), 100, 75)
    chosen = {name: found[name] for name in (inputs.QKV, inputs.GAIN)}
    chosen["all"] = {sum_: fsum(row[sum_] for row in found.values()) for sum_ in found[inputs.QKV]}
    return {f"{name} {key}": value for name, row in chosen.items() for key, value in row.items()}


def parameters(folder: Path) -> Numbers:
    found = adapter.parameters(inputs.write(folder, inputs.walk(1)))
    return {
        name: f"{row['layer']}, {row['role']}, {'counted' if row['counted'] else 'not counted'}"
        for name, row in found.items()
    }


def _traced(folder: Path) -> Rows:
    return adapter.trace(inputs.write(folder / "series", inputs.walk()), lags=LAGS, tokens_per_step=512.0)


def _resumed(folder: Path) -> Rows:
    """Interrupted, resumed while the series is short, resumed when it is whole, and read back from the folder."""
    states = inputs.walk()
    half = {step: state for step, state in states.items() if step <= LAST // 2}
    source, out = inputs.write(folder / "series", half), folder / "out"
    try:
        adapter.trace(source, out, lags=LAGS, tokens_per_step=512.0, interrupt_after=6)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("the trace was not interrupted")
    adapter.trace(source, out, lags=LAGS)
    inputs.write(source, states)
    adapter.trace(source, out, lags=LAGS)
    return adapter.read_trace(out)


def _pruned(folder: Path) -> Rows:
    """Traced half-way; then the oldest checkpoints but the first are removed, and the rest arrives."""
    states = inputs.walk()
    half = {step: state for step, state in states.items() if step <= LAST // 2}
    source, out = inputs.write(folder / "series", half), folder / "out"
    adapter.trace(source, out, lags=LAGS, tokens_per_step=512.0)
    for step in list(half)[1:3]:
        inputs.checkpoint(source, step).unlink()
    inputs.write(source, {step: state for step, state in states.items() if step > LAST // 2})
    return adapter.trace(source, out, lags=LAGS)


def _of_trace(rows: Rows, quantities: tuple[str, ...]) -> Numbers:
    """The model and a layer at the last step and at one between; and of each quantity the sum over all rows."""
    found: Numbers = {}
    for (level, name, step, quantity, reference), value in rows.items():
        of = f"{quantity} {reference}".strip()
        of_model = level == "model" and (step == LAST or quantity == "norm")
        if quantity in quantities and (of_model or (name, step, quantity) in SOME):
            found[f"{level} {name} {step} {of}"] = value
    for quantity, reference in sorted({(key[3], key[4]) for key in rows if key[3] in quantities}):
        values = [value for key, value in rows.items() if key[3:] == (quantity, reference)]
        found[f"sum of {len(values)} {quantity} {reference}".strip()] = fsum(values)
    return found


SOME = {
    (name, 200, quantity)
    for name in ("layer.1", "feedforward", inputs.QKV)
    for quantity in ("norm", "step_size", "growth_alignment", "total_share_steps", "cosine")
}


def lint(folder: Path) -> Numbers:
    """The findings of each series in one text, by `lint` and, where it can be traced, by `trace`."""
    found: Numbers = {}
    for name, series in inputs.faulty_series().items():
        source = inputs.write(folder / name, series)
        found[name] = "; ".join(adapter.lint(source))
        if name != "tensors":  # whose tensors are not the same at every step
            found[f"{name}, traced"] = "; ".join(adapter.lint_of_trace(source))
    return found


def compare(folder: Path) -> Numbers:
    one = inputs.write(folder / "one", inputs.walk(8))
    other = inputs.write(folder / "other", inputs.walk(8, key="other walk"))
    kept = ("norm_a", "norm_b", "factor_a", "factor_b", "norm_ratio", "cosine_first_b", "total_share_steps_a")
    return {f"{row['name']} {key}": row[key] for row in adapter.compare(one, other) for key in kept}


# --- laws and dynamics -----------------------------------------------------------------------------


def _correlated_norms() -> tuple[list[float], list[float]]:
    """√(b² + a²t) with noise that remembers itself, rounded to 1/1024."""
    noise, steps, norms = 0.0, [], []
    for i, drawn in enumerate(inputs.integers("noise", (40,), -20, 21).tolist()):
        noise = 0.75 * noise + drawn / 256
        steps.append(float(100 * i))
        norms.append(round(1024 * (sqrt(400.0 + 0.5 * 100 * i) + noise)) / 1024)
    return steps, norms


def fit(folder: Path) -> Numbers:
    steps, norms = _correlated_norms()
    found = adapter.fit(steps, norms, replicates=60)
    laws = ("sqrt ", "sqrt2 ", "power ", "relax ")
    kept = {
        key: value
        for key, value in found.items()
        if key in ("points", "needed", "effective", "rho", "best")
        or (key.startswith(laws) and "rmse" not in key)
    }
    layers = adapter.fit_trace(inputs.write(folder, inputs.walk()), "layer")
    for layer, own in layers.items():
        kept |= {f"{layer} {key}": own[key] for key in ("best", "sqrt a", "sqrt r2", "sqrt aicc")}
    return kept


def dynamics(folder: Path) -> Numbers:
    found = adapter.dynamics(inputs.write(folder, inputs.walk()), SCHEDULE, lags=(2, 4, 8), weight_decay=0.05)
    for model in ("aligned", "misaligned"):
        for discrete in (False, True):
            options: dict[str, Any] = {"model": model, "discrete": discrete, "weight_decay": 0.3}
            name = f"{model}, {'step by step' if discrete else 'flow'}"
            found[f"norm by κ = 2, {name}"] = adapter.predict_norm(SCHEDULE, 2.0, 300, **options)
    settings: dict[str, tuple[str, dict[str, Any]]] = {
        "AdamW": ("adamw", {"lr": 1e-3, "weight_decay": 0.1, "numel": 1000}),
        "SGD": ("sgd", {"lr": 0.1, "weight_decay": 1e-3, "gradient_norm": 2.0, "momentum": 0.9}),
    }
    for name, (optimizer, setting) in settings.items():
        row = adapter.equilibrium(optimizer, **setting)
        found |= {f"equilibrium of {name}, {key}": value for key, value in row.items()}
    return found


# --- networks --------------------------------------------------------------------------------------


def _inputs_of(architecture: str) -> dict[str, Tensor]:
    decoder = {"decoder_input_ids": inputs.token_ids("decoder", 3, 5)} if architecture == "T5" else {}
    return inputs.batches()[0] | decoder


def degrees(folder: Path) -> Numbers:
    """Of each architecture: degrees of outputs and of blocks, how many modules have each, what is dropped."""
    found: Numbers = {}
    for name in inputs.ARCHITECTURES:
        row = adapter.degrees(inputs.network(name), _inputs_of(name))
        modules: Mapping[str, str] = row["modules"]
        blocks = [degree for module, degree in modules.items() if module.split(".")[-1].isdigit()]
        count = sorted(Counter(modules.values()).items())
        found |= {
            f"{name} outputs": ", ".join(f"{key} {degree}" for key, degree in row["outputs"].items()),
            f"{name} blocks": ", ".join(blocks),
            f"{name} modules": ", ".join(f"{number} of degree {degree}" for degree, number in count),
            f"{name} sums": "; ".join(row["sums"]),
            f"{name} vanished": "; ".join(f"{key} {why}" for key, why in row["vanished"].items()),
            f"{name} orders": row["orders"],
            f"{name} doubtful": row["doubtful"],
        }
    return found


def limits(folder: Path) -> Numbers:
    """Of each architecture: the limit's last hidden state, and that of the network at c = 1000, in three numbers."""
    found: Numbers = {}
    for name in inputs.ARCHITECTURES:
        model, given = inputs.network(name), _inputs_of(name)
        found |= _of_states(f"{name} limit", adapter.saturated(model, given))
        found |= _of_states(f"{name} c = 1000", adapter.scaled_output(model, given, NETWORK_SCALE))
    return found


def _of_states(name: str, states: Tensor) -> Numbers:
    weights = torch.from_numpy(inputs.integers("projection", tuple(states.shape), -8, 9)).double()
    first = [float(x) for x in states[0, -1, :2]]
    projected = float((states * weights).sum())
    return {
        f"{name}, norm": float(states.norm()),
        f"{name}, projection": projected,
        f"{name}, state": first[1],
    }


def saturation(folder: Path) -> Numbers:
    """Every level of a BERT, with two random baselines; and the levels of a series of checkpoints."""
    model, batches = inputs.known_bert(3), inputs.batches()
    found: Numbers = {}
    rows = adapter.saturation(model, batches, baselines=2, scale=NETWORK_SCALE)
    for (_, name, _, quantity, _), value in rows.items():
        if name in ("layer.1", "model") or quantity == "saturation":
            found[f"{name} {quantity}"] = value
    rows = adapter.saturation_of_series(inputs.write(folder, inputs.bert_series()), model, batches)
    for (_, name, step, quantity, _), value in rows.items():
        if quantity == "saturation" or (name == "model" and quantity in ("norm", "saturation_others")):
            found[f"series {step} {name} {quantity}"] = value
    return found


def heads(folder: Path) -> Numbers:
    """One head of a GPT-2, the means over all, and the kind of each."""
    rows, kinds = adapter.heads(inputs.gpt2_with_a_mean_head(), inputs.batches(), scales=(1.0, NETWORK_SCALE))
    last = list(kinds)[-1]
    found: Numbers = {f"{key[1]} {key[3]}": value for key, value in rows.items() if key[1] in (last, "model")}
    return found | {f"{head} kind": kind for head, kind in kinds.items()}


def scaling(folder: Path) -> Numbers:
    scales = (1.0, 10.0, 100.0, 1000.0)
    rows, facts = adapter.scaling(inputs.gpt2(), inputs.batches()[0], scales)
    found: Numbers = dict(facts)
    for (level, name, step, quantity, _), value in rows.items():
        if (level == "model" and quantity != "scale") or (name, quantity) == ("layer.0", "cosine_saturated"):
            found[f"{name} {quantity} c = {scales[step]:g}"] = value
    return found


# --- training --------------------------------------------------------------------------------------


def tracker(folder: Path) -> Numbers:
    """Three steps of AdamW on a GPT-2 in float64: matrices decay, vectors do not."""
    model = inputs.gpt2("GPT2LMHeadModel", width=8).train()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.99))
    rows: Rows = {}
    with adapter.tracked(model, optimizer, rows):
        for step in range(3):
            ids = inputs.token_ids(f"step {step}", 4, 8)
            optimizer.zero_grad()
            logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
            torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten()).backward()
            optimizer.step()
    found: Numbers = {}
    for (level, name, step, quantity, reference), value in rows.items():
        last = name in ("model", "layer.1") and step == 3
        if last or (level == "model" and quantity == "norm"):
            found[f"{name} {step} {quantity} {reference}".strip()] = value
    for quantity in ("decay_step", "equilibrium_norm", "equilibrium_angle"):
        known = [v for key, v in rows.items() if key[0] == "tensor" and key[3] == quantity and isfinite(v)]
        found[f"sum of {len(known)} {quantity}"] = fsum(known)
    return found


SHAPE = {
    "layers": 2,
    "width": 8,
    "heads": 2,
    "feedforward": 12,
    "batch": 8,
    "dev_sentences": 8,
    "bias": False,
}


def train(folder: Path) -> Numbers:
    """A run of SGD with momentum, a schedule and clipping: losses, norms and saturation at the last step."""
    rows = adapter.train(
        inputs.write_corpus(folder / "corpus"), folder / "run", **SHAPE, steps=10, optimizer="sgd", lr=0.2,
        momentum=0.5, schedule="cosine", warmup=2, clip=1.0, evaluate="5", track="5", saturation_sentences=6,
    )  # fmt: skip
    kept = (
        "dev_loss", "train_loss", "test_loss", "norm", "step_size", "growth_alignment", "growth_steps", "angle",
        "gradient_norm", "learning_rate", "saturation",
    )  # fmt: skip
    return {
        f"{name} {step} {quantity}": value
        for (_, name, step, quantity, _), value in rows.items()
        if quantity in kept and (name == "model" or (name, step) == ("layer.1", 10))
    }


def sweep(folder: Path, stack: int = 1) -> Numbers:
    """Where growth ends for AdamW at two learning rates, found by bisection over five weight decays."""
    rows = adapter.sweep(
        inputs.write_corpus(folder / "corpus"), folder / "sweep", (3e-2, 0.1), (1e-3, 1e-2, 0.1, 1.0, 10.0),
        refine=True, stack=stack, **SHAPE, steps=8,
    )  # fmt: skip
    kept = (
        "norm_start", "norm_end", "growth", "growth_decay", "growth_alignment", "growth_steps", "loss_start",
        "loss_end", "dev_loss", "gradient_norm",
    )  # fmt: skip
    cells = sorted({key[1] for key in rows if key[0] == "cell"})
    found: Numbers = {"cells": ", ".join(cells)}
    for (level, name, _, quantity, _), value in rows.items():
        if level == "column" or (name in (cells[0], cells[-1]) and quantity in kept):
            found[f"{name}: {quantity}"] = value
    return found


# --- the paper -------------------------------------------------------------------------------------


def claims(folder: Path) -> Numbers:
    found: Numbers = {}
    for name, (verdict, numbers) in adapter.claims().items():
        found |= {name: verdict} | {f"{name}: {key}": value for key, value in numbers.items()}
    for name, (fails, numbers) in adapter.errata().items():
        found |= {f"{name} fails": fails} | {f"{name}: {key}": value for key, value in numbers.items()}
    return found


@dataclass(frozen=True)
class Group:
    """measure: with an empty folder to work in. entry: in numbers.json; several groups may have to give the same.

    tolerance: relative, 0 for equal to the last bit. What is text or a whole number is always equal.
    """

    measure: Callable[[Path], Numbers]
    entry: str
    tolerance: float


def _trace_groups() -> dict[str, Group]:
    ways = {"trace": _traced, "trace, interrupted and resumed": _resumed, "trace, pruned": _pruned}
    groups = {}
    for name, way in ways.items():
        groups[name] = Group(lambda folder, way=way: _of_trace(way(folder), EXACT), "trace", 0.0)
        groups[f"{name}, angles"] = Group(
            lambda folder, way=way: _of_trace(way(folder), ANGLES), "trace, angles", 1e-13
        )
    return groups


# Other instruction sets (SSE, AVX2, AVX-512) and threads move float64 numbers by up to 1e-11, those of float32
# training by up to 1e-5; what has tolerance 0 stays the same to the bit.
GROUPS: dict[str, Group] = {
    "moments": Group(moments, "moments", 0.0),
    "parameters": Group(parameters, "parameters", 0.0),
    **_trace_groups(),
    "lint": Group(lint, "lint", 0.0),
    "compare": Group(compare, "compare", 1e-13),
    "fit": Group(fit, "fit", 1e-9),
    "dynamics": Group(dynamics, "dynamics", 1e-9),
    "degrees": Group(degrees, "degrees", 0.0),
    "limits": Group(limits, "limits", 1e-9),
    "saturation": Group(saturation, "saturation", 1e-9),
    "heads": Group(heads, "heads", 1e-9),
    "scaling": Group(scaling, "scaling", 1e-9),
    "tracker": Group(tracker, "tracker", 1e-9),
    "train": Group(train, "train", 2e-4),
    "sweep": Group(sweep, "sweep", 1e-4),
    "sweep, stacked": Group(partial(sweep, stack=4), "sweep", 1e-4),
    "claims": Group(claims, "claims", 1e-9),
}
