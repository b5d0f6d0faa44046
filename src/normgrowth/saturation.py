"""Saturation: how close a network is to its saturated limit, layer by layer."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any, Literal

    from torch import nn

    from normgrowth.engine import Progress
    from normgrowth.network.hidden_states import States
    from normgrowth.network.models.load import LoadedModel
    from normgrowth.network.saturation.result import Saturation


def saturation(
    model: "str | Path | nn.Module | LoadedModel | Sequence[Any]",
    texts: "str | Path | Sequence[str] | None" = None,
    *,
    inputs: "Any" = None,
    tokenizer: "Any" = None,
    config: "str | Path | nn.Module | LoadedModel | None" = None,
    sentences: int = 100,
    c: "Sequence[float]" = (1000,),
    exact: bool = True,
    hard_attention: bool = False,
    stack: 'Literal["encoder", "decoder"] | None' = None,
    decoder_input: 'Literal["shifted", "start"]' = "shifted",
    as_published: bool = False,
    random_init: int = 0,
    seed: int = 0,
    fixed: "Sequence[str]" = (),
    batch_tokens: int = 2048,
    states: "States | None" = None,
    dtype: str | None = None,
    attention: str | None = None,
    model_type: str | None = None,
    include: str = "blocks",
    endpoint: str | None = None,
    run: str | None = None,
    out: "Path | str | None" = None,
    overwrite: bool = False,
    progress: "Progress | None" = None,
) -> "Saturation":
    """The saturation level of every layer of a model. The model stays bit-identical.

    model: a module, a name for `load_model`, or a list of these. With `config`: a series of checkpoints as for `trace`;
    every checkpoint is measured, and the records include the trace.
    texts: sentences, or a file with one sentence per line (default: sentences of the Python documentation).
    inputs: instead of texts, a batch or a list of batches: token ids, or a dict of tensors, where `attention_mask`
    marks padding.
    config: the architecture of the checkpoints: a config.json, a folder or hub id that has one, or a module, whose
    weights are restored afterwards. A checkpoint with NaN or infinite weights has no levels, and `problems` names
    the parameter. include, endpoint: options of `trace` for a series.
    c: factors of the weights; each needs at most one extra copy of the weights. exact: measure the exact limit.
    hard_attention: also compare with the same weights and every attention softmax replaced by its limit.
    stack: the measured stack of an encoder-decoder model (default: the encoder). decoder_input: input of the decoder:
    "shifted", the start token and then the sentence (teacher forcing), or "start", only the start token.
    as_published: measure as in the authors' script, see `saturation/published_form.py`.
    random_init: also measure this many networks of the same architecture with random weights, with the seeds after
    `seed`, one at a time.
    fixed: parameters that do not grow, as names or patterns (`["*.A_log"]`, see `saturated`).
    states: for modules other than transformers models: a function of the module and a batch that returns the hidden
    states, each (rows, tokens, size): first the embeddings, then the output of every block.
    dtype, attention, model_type: options of `load_model` for a model given by name. run: name of the run of a single
    model.
    out: output folder; for a series, the same call resumes. overwrite: replace another result there.

    >>> levels = ng.saturation(model, inputs=[inputs])
    >>> levels.matrix("saturation").names
    ['embeddings', 'layer.0', 'layer.1']
    """
    arguments = locals()
    from normgrowth.network.saturation.level_options import LevelOptions
    from normgrowth.network.saturation.result import Saturation

    options = LevelOptions.among(arguments)
    place: dict[str, Any] = {"run": run, "out": out, "overwrite": overwrite, "progress": progress}
    if config is None:
        from normgrowth.network.measure import measure_each
        from normgrowth.network.saturation.state_comparison import measure_saturation

        return measure_each(measure_saturation, model, texts, inputs, options, kind=Saturation, **place)
    from normgrowth.network.saturation.saturation_series import of_series

    return of_series(model, config, texts, inputs, options, include=include, endpoint=endpoint, **place)
