"""Degrees: the homogeneity degree of every part of a model, and what its limit drops."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from torch import Tensor, nn

    from normgrowth.limit.result import Degrees
    from normgrowth.network.models.load import LoadedModel


def degrees(
    model: "str | Path | nn.Module | LoadedModel",
    inputs: "Tensor | Sequence[Any] | Mapping[str, Any] | None" = None,
    *,
    texts: "str | Path | Sequence[str] | None" = None,
    orders: int | None = None,
    tolerance: float = 256,
    fixed: "Sequence[str]" = (),
    seed: int = 0,
    attention: str | None = None,
    model_type: str | None = None,
    as_initialized: bool = False,
    out: "Path | str | None" = None,
    overwrite: bool = False,
) -> "Degrees":
    """The degree k of every submodule's output, which grows like c^k with parameters cθ.

    model: a module, or a name for `load_model`.
    inputs: arguments of the model: a tensor, a list of positional arguments, or a dict of keyword arguments.
    texts: instead of inputs, sentences, or a file with one sentence per line (default: sentences of the Python
    documentation).
    orders, tolerance, fixed: options of `saturated`.
    seed, attention, model_type: options of `load_model` for a model given by name. For random weights from a
    config.json, parameters that are initialized as constants (zero biases, unit gains) get noise, unless
    as_initialized is set.
    out: output folder; overwrite: replace another result there.

    >>> degrees = ng.degrees(model, inputs)
    >>> degrees.outputs
    {'logits': Fraction(2, 1)}
    """
    from dataclasses import replace
    from pathlib import Path

    from normgrowth.errors import InputError
    from normgrowth.limit import degree_pass
    from normgrowth.limit.growing_parameters.fixed import note_on_fixed
    from normgrowth.network.inputs.default_inputs import default_inputs
    from normgrowth.network.measured import held_text, input_identities, name_of, naming
    from normgrowth.network.models.load import NOISE, as_loaded, generic
    from normgrowth.results import Provenance
    from normgrowth.workspace import ResultFolder

    named = isinstance(model, str | Path)
    source, texts = name_of(model), held_text(texts)
    load: dict[str, Any] = {"seed": seed, "attention": attention, "model_type": model_type}
    measured: dict[str, Any] = {"orders": orders, "tolerance": tolerance, "fixed": fixed}
    request = {
        "model": source,
        **input_identities(out, [model], texts, inputs),
        "as_initialized": as_initialized,
        **load,
        **measured,
    }
    folder = ResultFolder(out, "degrees", request, overwrite)
    loaded = as_loaded(model, load)
    notes, said, unknown = list(loaded.notes), "given", None
    if named and loaded.random and not as_initialized and (changed := generic(loaded.model, seed)):
        notes.append(
            f"{len(changed)} constant parameters (zero biases, unit gains) got noise of {NOISE}, because training "
            "changes them; as_initialized (--as-initialized) keeps them constant"
        )
    notes += note_on_fixed(fixed)
    if _is_text(inputs):
        raise InputError(f"inputs are tensors, got the text {inputs!r:.60}; pass sentences as texts=")
    if inputs is None:
        found = default_inputs(loaded, texts, seed=seed)
        inputs, said, unknown = found.tensors, found.note, found.unknown_share
        notes += [f"input: {said}", *([found.warning] if found.warning else [])]
    elif texts is not None:
        raise InputError("pass texts or inputs, not both")
    args, kwargs = _arguments(inputs)
    with naming(model):
        if named:
            _check_runs(loaded.model, args, kwargs)
        result = degree_pass.measure_degrees(loaded.model, args, kwargs, **measured)
    facts = {"source": source, "input": said, "unknown_share": unknown}
    result = replace(result, **facts, notes=tuple(notes), provenance=Provenance.now())
    folder.write(result)
    return result


def _is_text(inputs: "Any") -> bool:
    return isinstance(inputs, str) or (
        isinstance(inputs, list | tuple) and any(isinstance(x, str) for x in inputs)
    )


def _arguments(inputs: "Any") -> "tuple[list[Any], dict[str, Any]]":
    from collections.abc import Mapping

    if isinstance(inputs, Mapping):
        return [], dict(inputs)
    return (list(inputs), {}) if isinstance(inputs, list | tuple) else ([inputs], {})


def _check_runs(model: "nn.Module", args: "Sequence[Any]", kwargs: "Mapping[str, Any]") -> None:
    """Raise InputError if the model itself does not run, so that later errors of the limit are bugs of normgrowth."""
    from normgrowth.network.hidden_states import evaluating, running

    first: Any = next(iter([*args, *kwargs.values()]), None)
    with evaluating(model), running(model, first.numel() if hasattr(first, "numel") else 0):
        model(*args, **kwargs)
