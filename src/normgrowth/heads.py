"""Heads: what every attention head of a model does, in the network itself and in its limit."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from torch import nn

    from normgrowth.engine import Progress
    from normgrowth.network.heads.result import Heads
    from normgrowth.network.models.load import LoadedModel


def heads(
    model: "str | Path | nn.Module | LoadedModel | Sequence[Any]",
    texts: "str | Path | Sequence[str] | None" = None,
    *,
    inputs: "Any" = None,
    tokenizer: "Any" = None,
    sentences: int = 100,
    exact: bool = True,
    c: "Sequence[float]" = (),
    window: int | None = None,
    tolerance: float = 0.01,
    show: str | None = None,
    show_heads: "Sequence[str]" = (),
    batch_tokens: int = 2048,
    fixed: "Sequence[str]" = (),
    seed: int = 0,
    dtype: str | None = None,
    attention: str | None = None,
    model_type: str | None = None,
    step: int | None = None,
    run: str | None = None,
    out: "Path | str | None" = None,
    overwrite: bool = False,
    progress: "Progress | None" = None,
) -> "Heads":
    """Statistics of every attention head of a model. The model stays bit-identical.

    model: a module, a name for `load_model`, or a list of these. For an encoder-decoder model, the encoder is measured.
    texts: sentences, or a file with one sentence per line (default: sentences of the Python documentation).
    inputs: instead of texts, a batch or a list of batches: token ids, or a dict of tensors, where `attention_mask`
    marks padding.
    exact: also measure the saturated network (the exact limit). c: also measure with c times the weights, which needs
    a copy of the model in float64. window: also measure the published form, on sentences padded to this many tokens.
    tolerance: maximum weight outside the largest position in a hard head, for hard_scale.
    show: a sentence whose attention patterns are stored; show_heads: names of the heads (default: the clearest).
    fixed: parameters that do not grow, as names or patterns (`["*.A_log"]`, see `saturated`).
    seed, dtype, attention, model_type: options of `load_model` for a model given by name. step, run: step and run of
    the records; the default is the step of a checkpoint's folder, else 0.
    out: output folder; overwrite: replace another result there.

    >>> heads = ng.heads(model, inputs=[inputs])
    >>> heads.matrix("attended", by="head").values.shape
    (1, 4)
    """
    arguments = locals()
    from normgrowth.network.heads.measurement import HeadOptions, measure_heads
    from normgrowth.network.heads.result import Heads
    from normgrowth.network.measure import measure_each

    place: dict[str, Any] = {"run": run, "out": out, "overwrite": overwrite, "progress": progress}
    options = HeadOptions.among(arguments)
    return measure_each(measure_heads, model, texts, inputs, options, kind=Heads, **place)
