"""Why two runs diverge: each cause as a sentence, with its evidence and what to check."""

from collections.abc import Sequence
from math import isclose, log2, sqrt

from normgrowth.compare.result import Diagnosis, Parting
from normgrowth.report.difference_grid import TITLES
from normgrowth.report.numbers import number, times
from normgrowth.text import visible

NAMED = 3  # tensors that a sentence names
DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def cause(one: Diagnosis, partings: Sequence[Parting] = ()) -> str:
    """One cause as a sentence, with its evidence and what to check. partings: the first differences of all stages."""
    said = f"The runs diverge at step {one.step:,}: {CAUSES[one.cause](one)}"
    return f"{said} {_inputs(one, partings)}" if one.cause == "learning_rate" else said


def _inputs(one: Diagnosis, partings: Sequence[Parting]) -> str:
    """Whether weights and gradients agree at the step at which learning rates differ."""
    changed = {parting.stage for parting in partings if parting.step <= one.step}
    if "weights_before" in changed:
        return (
            "The weights before this step differ, too, as they do if learning rates already differed in the steps "
            "that were not measured; NormTracker(every=1) measures all."
        )
    return "Weights agree." if "gradient" in changed else "Weights and gradients agree."


def _initialization(one: Diagnosis) -> str:
    return (
        f"different initialization. Weights of {_share(one)} differ before the first update, most in {_values(one)}. "
        "Use the same seed or the same initial checkpoint."
    )


def _earlier(one: Diagnosis) -> str:
    return (
        f"weights of {_share(one)} differ at the first step that both have, most in {_values(one)}. "
        "Earlier steps are needed to find the cause."
    )


def _nonfinite(one: Diagnosis) -> str:
    return f"{one.run} has NaN or infinite weights in {_names(one)}, the other run has none."


def _outside(one: Diagnosis) -> str:
    return (
        f"weights of {_share(one)} change outside of optimizer.step(). They agree after step {one.previous or 0:,} and "
        f"differ before step {one.step:,}, most in {_values(one)}. Check for loaded checkpoints, weight averaging and "
        "tied weights."
    )


def _between(one: Diagnosis) -> str:
    before = (
        "" if one.previous is None else f" They agree at step {one.previous:,}: the cause is between the two."
    )
    return (
        f"the {TITLES[one.stage]} of {_share(one)} {_differs(one.stage)} by more than rounding explains, most in "
        f"{_values(one)}."
        f"{before} Track both runs with NormTracker(every=1) to see it."
    )


def _gradient_factor(one: Diagnosis) -> str:
    factor = one.factor or 1.0
    return (
        f"gradients of all tensors are ×{_factor(factor)} in b ({_share(one)}, such as {_values(one)}). "
        f"{_factor_hint(factor, one.ranks)}"
    )


def _factor_hint(factor: float, ranks: int) -> str:
    """What usually multiplies all gradients by this factor."""
    large = max(factor, 1 / factor)
    if ranks > 1 and isclose(large, ranks, rel_tol=0.01):
        return f"A sum instead of a mean over {ranks} ranks, or accumulation of {ranks} batches without division?"
    if ranks > 1 and isclose(large, sqrt(ranks), rel_tol=0.01):
        return f"√{ranks} is the square root of the number of ranks: the norm of one rank's shard?"
    if large >= 256 and isclose(log2(large) % 1, 0, abs_tol=1e-3):
        return "A loss scale that is not divided out before the step?"
    return "A sum instead of a mean over ranks, a loss scale, or accumulation without division?"


def _local_clipping(one: Diagnosis) -> str:
    return (
        f"clipping by the local norm. The gradient norm of the model stays at {number(one.a or 0, 4)} in a and at "
        f"{number(one.b or 0, 4)} in b, a factor of √{one.ranks}: each of the {one.ranks} ranks of {one.run} clips its "
        f"own shard to the threshold ({_share(one)} differ, most {_names(one)}). Clip by the norm over all ranks."
    )


def _clipping(one: Diagnosis) -> str:
    if one.a is not None and one.b is not None:
        thresholds = f"{number(one.a, 4)} in a and to {number(one.b, 4)} in b"
        return f"gradients are clipped to {thresholds} ({_share(one)} differ, most {_names(one)})."
    value, other = (one.b, "a") if one.a is None else (one.a, "b")
    return (
        f"gradients are clipped in {one.run}, where the norm of the model stays at {number(value or 0, 4)}, and not in "
        f"{other} ({_share(one)} differ, most {_names(one)}). Is clipping missing, or done before gradients are "
        "averaged?"
    )


def _averaging(one: Diagnosis) -> str:
    factor = one.factor or 1.0
    return (
        f"gradients of {one.run} come from less data. They differ in {_share(one)}, most in {_values(one)}, and are "
        f"{max(factor, 1 / factor):.2f} times as large on average. Are gradients averaged over all {one.ranks} ranks, "
        "and over the whole batch?"
    )


def _untied(one: Diagnosis) -> str:
    names = some([visible(name) for name in (*one.only_a, *one.only_b)])
    other = "b" if one.run == "a" else "a"
    return (
        f"weights that are tied in {other} are not tied in {one.run}. The gradient of {_values(one)} differs, and only "
        f"{one.run} has {names}."
    )


def _still(one: Diagnosis) -> str:
    group = f" ({one.group})" if one.group else ""
    many = len(one.tensors) > 1
    what = f"{len(one.tensors)} tensors" if many else _names(one)
    which = f": {_names(one)}" if many else ""
    return (
        f"{what}{group} {'do' if many else 'does'} not change in {one.run} but {'do' if many else 'does'} in the other "
        f"run{which}. Missing in the optimizer, frozen, or without a gradient?"
    )


def _part(one: Diagnosis) -> str:
    where = f"of {one.group} " if one.group else ""
    return (
        f"gradients {where}differ first: {_share(one)}, most in {_values(one)}. Those of the other tensors agree up to "
        "rounding, so check the computations that involve only these tensors."
    )


def _data(one: Diagnosis) -> str:
    return (
        f"different data, random numbers or computation from step {one.step:,} on. Gradients of {_share(one)} differ "
        f"with no common factor, most in {_values(one)}; weights agree before. Check the order of the data, the "
        "sampler of each rank, the seed of dropout, the weights of the loss and the model's configuration."
    )


def _learning_rate(one: Diagnosis) -> str:
    factor = f" (×{_factor(one.factor)})" if one.factor else ""
    group = f" All belong to {one.group}." if one.group else ""
    return (
        f"different learning rates{factor}: {number(one.a or 0, 4)} in a, {number(one.b or 0, 4)} in b for "
        f"{_share(one)} ({_names(one)}).{group}"
    )


def _decay(one: Diagnosis) -> str:
    said = []
    for run, names in (("b", one.only_a), ("a", one.only_b)):
        if names:
            said.append(
                f"weight decay is missing in {run} for {len(names)} tensors ({some(list(map(visible, names)))})"
            )
    if not said:
        factor = f" (×{_factor(one.factor)})" if one.factor else ""
        said.append(f"weight decay differs{factor} in {_share(one)}, such as {_values(one)}")
    group = f" All belong to {one.group}." if one.group else ""
    return f"{', and '.join(said)}.{group} Check the parameter groups of the optimizer."


def _decay_kind(one: Diagnosis) -> str:
    return (
        f"weight decay is added to the gradient in {one.run} and decoupled from it in the other run, for "
        f"{_share(one)} ({_names(one)}). Adam versus AdamW?"
    )


def _rounding(one: Diagnosis) -> str:
    return (
        f"updates are lost to rounding in {one.run}. The steps of {_share(one)} are below the resolution of "
        f"{DTYPES.get(one.dtype, one.dtype)}, most in {_values(one)}; gradients agree. Keep master weights in float32."
    )


def _optimizer(one: Diagnosis) -> str:
    factor = f", by a factor of {_factor(one.factor)} in b" if one.factor else ""
    first = " Earlier steps agree: betas or momentum?" if one.previous else ""
    return (
        f"equal gradients but different steps. Learning rates and decay agree; the steps of {_share(one)} "
        f"differ{factor}, most in {_values(one)}. A different optimizer, betas, epsilon or optimizer state?{first}"
    )


CAUSES = {
    "initialization": _initialization,
    "earlier": _earlier,
    "nonfinite": _nonfinite,
    "outside": _outside,
    "between": _between,
    "gradient_factor": _gradient_factor,
    "local_clipping": _local_clipping,
    "clipping": _clipping,
    "averaging": _averaging,
    "untied": _untied,
    "still": _still,
    "part": _part,
    "data": _data,
    "learning_rate": _learning_rate,
    "decay": _decay,
    "decay_kind": _decay_kind,
    "rounding": _rounding,
    "optimizer": _optimizer,
}


SHORT = {
    "earlier": "weights differ at the first common step",
    "between": "cause between two compared steps",
    "nonfinite": "NaN or infinite weights",
    "outside": "weights change outside of optimizer.step()",
    "gradient_factor": "gradients differ by a factor",
    "still": "some tensors do not move",
    "part": "gradients of some tensors",
}


def short_cause(one: Diagnosis) -> str:
    """The step and the cause in a few words."""
    return f"diverge at step {one.step:,}: {SHORT.get(one.cause) or one.cause.replace('_', ' ')}"


def _differs(stage: str) -> str:
    return "differ" if stage.startswith("weights") else "differs"


def _share(one: Diagnosis) -> str:
    return f"{len(one.tensors)} of {one.of} tensors"


def _names(one: Diagnosis) -> str:
    return some([visible(name) for name in one.tensors])


def _values(one: Diagnosis) -> str:
    """The tensor that differs most, with its values in both runs."""
    name = visible(one.tensors[0]) if one.tensors else "-"
    if one.a is None or one.b is None:
        return name
    return f"{name} ({number(one.a, 6)} in a, {number(one.b, 6)} in b)"


def some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _factor(factor: float) -> str:
    near = round(factor) or 1
    return str(near) if isclose(factor, near, rel_tol=1e-4) else times(factor)
