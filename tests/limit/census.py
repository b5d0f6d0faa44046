"""The limit of one text architecture beside the network itself: how it came out, as a record.

right        agrees with the network scaled by some c from 10 to 1e7
converging   does not agree yet at c = 1e7; the error falls steadily
refused      the limit raised an InputError, which says why
not verified the scaled network gives no numbers, so that there is nothing to compare with
undecided    does not agree, and the limit counts doubtful values
wrong        does not agree, and nothing says so
not built    transformers could not build or run the small model, or run it with its parameters times c
crashed      anything else
"""

import copy
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import torch
from limit.architectures import Double
from limit.comparison import FACTORS, Row, floating, leading, measure, watched
from limit.routers import OrderedRouter
from limit.text_models import Setting, build, has_experts, text
from torch import nn

from normgrowth.errors import InputError
from normgrowth.limit.saturated import Limit, saturated

COSINE, SIZE = 1e-4, 1e-2  # of a right one, at its best c
FALLS = 0.7  # a converging error: per factor of 10 in c
NARROW = 0.999  # smallest cosine in 16 bits, where no tie is open


class NoReference(Exception):
    """The scaled network does not run: there is nothing to compare the limit with."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def examine(name: str, setting: Setting) -> dict[str, Any]:
    """One architecture in one setting, in float64."""
    began = time.perf_counter()
    record: dict[str, Any] = {"architecture": name, "setting": asdict(setting), "dtype": "float64"}
    with default_dtype(torch.float64), torch.no_grad():
        record |= _examined(name, setting)
    return record | {"seconds": round(time.perf_counter() - began, 2)}


def _built(name: str, setting: Setting) -> tuple[nn.Module, dict[str, Any]] | str:
    """The model and its inputs, if it runs and gives numbers; else why not."""
    try:
        model = build(name, setting)
        given = text(model)
        with Double():
            values = floating(model(**given))
    except Exception as error:  # of transformers: any class
        return f"{type(error).__name__}: {error}"[:300]
    return (model, given) if all(bool(v.isfinite().all()) for v in values) else "its output is not finite"


def _examined(name: str, setting: Setting) -> dict[str, Any]:
    built = _built(name, setting)
    if isinstance(built, str):
        return {"outcome": "not built", "reason": built}
    model, given = built
    limit = saturated(model)
    try:
        with Double(), watched(model, whole=True) as seen:
            limit(**given)
    except InputError as error:
        return {"class": type(model).__name__, "outcome": "refused", "reason": str(error)}
    except Exception as error:
        return {
            "class": type(model).__name__,
            "outcome": "crashed",
            "reason": f"{type(error).__name__}: {error}"[:300],
        }
    found = {
        "class": type(model).__name__,
        "degree": str(limit.degrees.get("")),
        "doubtful": limit.doubtful,
        "orders": limit.used_orders,
        "ties": sum(tie.tied for tie in limit.ties),
        "vanished": len(limit.vanished),
        "parameters": len(list(model.parameters())),
    }
    if not all(bool(term.value.isfinite().all()) for one in seen for term in one.value.terms):
        return found | {"outcome": "undecided" if limit.doubtful else "wrong", "reason": "not a number"}
    try:
        rows = compared(model, given, seen, Double())
    except NoReference as error:
        return found | {"outcome": "not built", "reason": str(error)}
    outcome, reference = judged(rows, limit), "float64"
    if outcome in ("wrong", "undecided") and has_experts(model.config):
        again = compared(model, given, seen, OrderedRouter(setting.experts))
        if (second := judged(again, limit)) in ("right", "converging"):
            outcome, reference, rows = second, "ordered", again
    worst = max(rows, key=smallest_error)
    return found | {
        "outcome": outcome,
        "reference": reference,
        "cosines": [_short(c) for c in worst.cosines],
        "sizes": [_short(s) for s in worst.sizes],
        "of outputs": len(rows),
    }


def _short(value: float) -> float | None:
    return float(f"{value:.2g}") if math.isfinite(value) else None


def compared(model: nn.Module, given: dict[str, Any], seen: list[Any], arithmetic: Double) -> list[Row]:
    """Rows for every output of the model, with their errors at each c."""
    parts = [part for one in seen for part in leading(one)]
    for c in FACTORS:
        scaled = copy.deepcopy(model)
        for parameter in scaled.parameters():
            parameter.mul_(c)
        with arithmetic, watched(scaled, whole=True) as found:
            try:
                scaled(**given)
            except (RuntimeError, ValueError) as error:  # of the network's own checks
                raise NoReference(
                    f"the network times {c:g} raises {type(error).__name__}: {error}"[:300]
                ) from error
        values = {(one.module, one.call, one.leaf): one.value for one in found}
        for row, here, coefficient in parts:
            measure(row, here, coefficient, values[row.module, row.call, row.leaf], c)
    return [row for row, _, _ in parts]


def smallest_error(row: Row) -> float:
    """The smallest over c; of an output that is exactly 0, its norm."""
    both = [(c / COSINE, s / SIZE) for c, s in zip(row.cosines, row.sizes, strict=True)]
    return min((max(pair) for pair in both if not any(map(math.isnan, pair))), default=math.inf)


def judged(rows: list[Row], limit: Limit) -> str:
    wrong = [row for row in rows if smallest_error(row) > 1]
    if not wrong:
        return "right"
    if all(_falls(row.sizes) for row in wrong):
        return "converging"
    if all(math.isinf(smallest_error(row)) for row in wrong):
        return "not verified"
    return "undecided" if limit.doubtful else "wrong"


def _falls(sizes: list[float]) -> bool:
    """By the end, with every factor of 10."""
    last = sizes[-4:]
    return last[-1] < 0.5 and all(b <= FALLS * a for a, b in pairwise(last))


def examine_narrow(name: str, setting: Setting, dtype: torch.dtype, autocast: bool) -> dict[str, Any]:
    """In 16 bits, or in float32 under an autocast to them, against the float64 limit of the same rounded weights."""
    began = time.perf_counter()
    kind = ("autocast " if autocast else "") + str(dtype).removeprefix("torch.")
    record: dict[str, Any] = {"architecture": name, "setting": asdict(setting), "dtype": kind}
    with torch.no_grad():
        record |= _examined_narrow(name, setting, dtype, autocast)
    return record | {"seconds": round(time.perf_counter() - began, 2)}


def _examined_narrow(name: str, setting: Setting, dtype: torch.dtype, autocast: bool) -> dict[str, Any]:
    with default_dtype(torch.float64):
        built = _built(name, setting)
    if isinstance(built, str):
        return {"outcome": "not built", "reason": built}
    model, given = built
    narrow = model.to(torch.float32 if autocast else dtype)
    wide = copy.deepcopy(narrow).double()
    reference, limit = saturated(wide), saturated(narrow)
    try:
        with torch.autocast("cpu", dtype, enabled=autocast):
            narrow(**given)
    except (RuntimeError, ValueError) as error:  # no kernel for this type, or the network checks its values
        return {"outcome": "not built", "reason": f"{type(error).__name__}: {error}"[:300]}
    try:
        with default_dtype(torch.float64), Double():
            expected = floating(reference(**given))[0]
        with torch.autocast("cpu", dtype, enabled=autocast):
            found = floating(limit(**given))[0].double()
    except InputError as error:
        return {"outcome": "refused", "reason": str(error)}
    except Exception as error:
        return {"outcome": "crashed", "reason": f"{type(error).__name__}: {error}"[:300]}
    cosine = float(torch.cosine_similarity(found, expected, dim=-1, eps=0.0).min())
    size = float((found - expected).norm() / expected.norm())
    right = cosine >= NARROW and limit.degrees.get("") == reference.degrees.get("")
    # Masks whose constants overflow in 16 bits, or that the network chooses by its dtype, make another network.
    doubtful = limit.doubtful or reference.doubtful or limit.findings != reference.findings
    outcome = "right" if right else "undecided" if doubtful else "wrong"
    return {"outcome": outcome, "cosine": _short(cosine), "size": _short(size), "doubtful": limit.doubtful}
