"""Why two runs diverge: each cause as a sentence, with its evidence and what to check."""

from collections.abc import Sequence
from math import isclose, log2, sqrt

from normgrowth.compare.result import Diagnosis, Parting, Setting
from normgrowth.report.difference_grid import TITLES
from normgrowth.report.numbers import number, times
from normgrowth.text import visible

NAMED = 3  # tensors that a sentence names
DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def cause(one: Diagnosis, partings: Sequence[Parting] = (), settings: Sequence[Setting] = ()) -> str:
    """One cause as a sentence, with its evidence and what to check.

    partings: the first differences of all stages. settings: settings of the optimizers that differ.
    """
    said = f"The runs diverge at step {one.step:,}: {CAUSES[one.cause](one)}"
    if one.cause == "learning_rate":
        return f"{said} {_inputs(one, partings)}"
    if one.cause == "optimizer":
        return f"{said} {optimizer_settings(settings) or _unknown_setting(one)}"
    return said


def optimizer_settings(settings: Sequence[Setting]) -> str:
    """The settings of the optimizers that differ, as a sentence; "" if there are none."""
    if not settings:
        return ""
    values = [f"{visible(one.name)} {visible(one.a)} in a, {visible(one.b)} in b" for one in settings]
    return f"The optimizers have different settings: {'; '.join(values)}."


def _unknown_setting(one: Diagnosis) -> str:
    """What may be different if no recorded setting is."""
    said = "A different optimizer, betas, epsilon or optimizer state?"
    if one.cosines is not None and _same_norm(one):
        return (
            f"{said} Or negated or permuted gradients, which have the same norms? NormTracker(optimizer_state=True) "
            "also records their cosine to the weights."
        )
    return f"{said} Earlier steps agree: betas or momentum?" if one.previous else said


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
    if one.factor is None:
        return (
            f"different initialization. Weights of {_share(one)} differ before the first update, most in "
            f"{_values(one)}. Use the same seed or the same initial checkpoint."
        )
    where = f" of {one.group}" if one.group else ""
    return (
        f"different initialization{where}. Weights of {_share(one)} are ×{_factor(one.factor)} in b before the first "
        f"update, such as {_values(one)}. Check the scale with which they are initialized."
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
    advice = (
        "Earlier stages of this step agree within their noise floors; compare more steps."
        if one.previous is not None and one.step - one.previous == 1
        else "Track both runs with NormTracker(every=1) to see it."
    )
    before = (
        "" if one.previous is None else f" They agree at step {one.previous:,}: the cause is between the two."
    )
    return (
        f"the {TITLES[one.stage]} of {_share(one)} {_differs(one.stage)} by more than rounding explains, most in "
        f"{_values(one)}."
        f"{before} {advice}"
    )


def _gradient_factor(one: Diagnosis) -> str:
    factor = one.factor or 1.0
    without = f" except {some(list(map(visible, one.outliers)))}" if one.outliers else ""
    return (
        f"gradients of all tensors{without} are ×{_factor(factor)} in b ({_share(one)}, such as {_values(one)}). "
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
    more = len(one.tensors) - 1
    rest = f", as do those of {more} other tensors, so the two have other initial values" if more else ""
    return (
        f"weights that are tied in {other} are not tied in {one.run}, and only {one.run} has {names}. The gradient of "
        f"{_values(one)} differs{rest}."
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
    others = "Those of the other tensors agree up to rounding"
    if one.factor is not None:
        others += f" except for ×{_factor(one.factor)}, because both runs clip the gradient norm of the model"
    return (
        f"gradients {where}differ first: {_share(one)}, most in {_values(one)}. {others}, so check the "
        "computations that involve only these tensors."
    )


def _precision(one: Diagnosis) -> str:
    other = "b" if one.run == "a" else "a"
    return (
        f"{one.run} computes in {DTYPES.get(one.dtype, one.dtype)}, as with autocast, and {other} does not. Gradients "
        f"of {_share(one)} differ by no more than its rounding explains, most in {_values(one)}."
    )


def _data(one: Diagnosis) -> str:
    first = one.previous is None or one.step <= 1
    initial = ", and the initial weights: permuted or negated ones have the same norms" if first else ""
    return (
        f"different data, random numbers or computation from step {one.step:,} on. Gradients of {_share(one)} differ "
        f"with no common factor, most in {_values(one)}; norms of weights agree before. Check the order of the data, "
        "the sampler of each rank, the seed of dropout, the weights of the loss and the model's configuration"
        f"{initial}."
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
        f"{_share(one)} ({_names(one)})."
    )


def _rounding(one: Diagnosis) -> str:
    return (
        f"updates are lost to rounding in {one.run}. The steps of {_share(one)} are below the resolution of "
        f"{DTYPES.get(one.dtype, one.dtype)}, most in {_values(one)}; gradients agree. Keep master weights in float32."
    )


def _optimizer(one: Diagnosis) -> str:
    factor = f", by a factor of {_factor(one.factor)} in b" if one.factor else ""
    if one.stage.startswith("weights"):
        return f"different steps. The {TITLES[one.stage]} of {_share(one)} differ, most in {_values(one)}."
    return (
        f"gradient norms agree but steps differ. Learning rates and decay agree; the steps of {_share(one)} "
        f"differ{factor}, most in {_values(one)}."
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
    "precision": _precision,
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
    "precision": "computation in another dtype",
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
    """The tensor that differs most, with its values in both runs, or with its cosines if only its direction differs."""
    name = visible(one.tensors[0]) if one.tensors else "-"
    if one.a is None or one.b is None:
        return name
    if one.cosines is not None and _same_norm(one):
        what = "gradient" if one.stage == "gradient" else "step"
        a, b = (number(value, 6) for value in one.cosines)
        return f"{name} (norms agree; the cosine of {what} and weights is {a} in a, {b} in b)"
    return f"{name} ({number(one.a, 6)} in a, {number(one.b, 6)} in b)"


def _same_norm(one: Diagnosis) -> bool:
    """Whether the norms of the tensor that differs most explain less than half of its difference."""
    if one.a is None or one.b is None:
        return False
    return abs(one.a - one.b) < one.difference / 2 * max(one.a, one.b)


def some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _factor(factor: float) -> str:
    near = round(factor) or 1
    if near != 1 and isclose(factor, near, rel_tol=1e-4):
        return str(near)
    return times(factor) if abs(factor - 1) > 1e-3 else f"{factor:.7g}"
