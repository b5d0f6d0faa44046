"""Scaling: how a network approaches its saturated limit as its weights grow."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from normgrowth.engine import Progress
    from normgrowth.network.hidden_states import States
    from normgrowth.network.models.encoders import EncoderConfig
    from normgrowth.network.models.load import LoadedModel
    from normgrowth.network.scaling.result import Scaling


def scaling(
    model: "str | Path | EncoderConfig | nn.Module | LoadedModel",
    inputs: "Tensor | Mapping[str, Tensor] | None" = None,
    *,
    texts: "str | Path | Sequence[str] | None" = None,
    c: "Sequence[float] | None" = None,
    seeds: "int | Sequence[int] | None" = None,
    layers: int | None = None,
    width: int | None = None,
    fixed: "Sequence[str]" = (),
    states: "States | None" = None,
    dtype: str = "float64",
    model_type: str | None = None,
    run: str | None = None,
    out: "Path | str | None" = None,
    overwrite: bool = False,
    progress: "Progress | None" = None,
) -> "Scaling":
    """The cosine and the distance of a network to its limit at each c (see `Scaling`). The network stays unchanged.

    model: a module, which runs in its own dtype (the error cannot fall below its rounding); a name for `load_model`; an
    EncoderConfig, built in float64 with random weights; or "paper": the paper's encoder and its two variants, without
    and with biases, with `layers` (12) of `width` (768).
    inputs: token ids, or a dict of tensors; states with `attention_mask` 0 do not count.
    texts: instead of inputs, sentences, or a file with one sentence per line (default: sentences of the Python
    documentation; random ids for an EncoderConfig).
    c: the factors of the weights, ascending (default: 49 from 1 to 10,000).
    seeds: seeds of random weights: their number (default: 3 for an EncoderConfig, 1 for a config.json), or a list. For
    one seed, weights are the same with and without biases.
    fixed: parameters that do not grow, as names or patterns (`["*.A_log"]`, see `saturated`).
    states: for modules other than transformers models: a function of the module and the inputs that returns the hidden
    states, each (rows, tokens, size): first the embeddings, then the output of every block.
    dtype, model_type: options of `load_model` for a model given by name. run: the name of the run in the records.
    out: output folder; overwrite: replace another result there.

    >>> curve = ng.scaling(model, inputs, c=[1, 10, 100])
    >>> figure = curve.plot()
    """
    from normgrowth.errors import InputError
    from normgrowth.network.measured import held_text, input_identities, name_of
    from normgrowth.network.models.encoders import EncoderConfig
    from normgrowth.network.scaling import curves
    from normgrowth.workspace import ResultFolder

    paper = model == "paper"
    if (layers or width) and not paper:
        raise InputError("layers and width are only for scaling('paper')")
    if texts is not None and (paper or isinstance(model, EncoderConfig)):
        raise InputError(
            "texts cannot be used with 'paper' or an EncoderConfig: these encoders read random ids"
        )
    if paper and fixed:
        raise InputError("fixed cannot be used with 'paper': all parameters of its encoders grow")
    if inputs is not None and texts is not None:
        raise InputError("pass texts or inputs, not both")
    drawn = range(seeds) if isinstance(seeds, int) else seeds
    scales = curves.checked_scales(curves.SCALES if c is None else c)
    load = {"dtype": dtype, "model_type": model_type}
    texts = held_text(texts)
    request = {
        "model": run or name_of(model),
        "c": scales.tolist(),
        "seeds": None if drawn is None else list(drawn),
        **input_identities(out, [model], texts, inputs),
        "fixed": list(fixed),
        **({"layers": layers, "width": width} if paper else load),
    }
    folder = ResultFolder(out, "scaling", request, overwrite)
    if paper:
        subjects = curves.of_paper(layers or 12, width or 768, inputs, drawn)
    elif isinstance(model, EncoderConfig):
        subjects = curves.of_config(model, inputs, drawn, run or curves.label_of(model), fixed)
    else:
        subjects = curves.of_model(model, inputs, texts, drawn, run, load, fixed, states)
    result = curves.measure(subjects, scales, fixed, progress)
    if paper:
        result = curves.described(layers or 12, width or 768, result)
    folder.write(result)
    return result
