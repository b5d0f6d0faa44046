"""The stage `figure2_forms`: levels of a random T5 in each form in which Figure 2 may have been measured.

The runs are "FORM, seed N", with the forms of T5 in `FORMS`, and of an XLNet its states and its memory for the next
segment (`published_form`), which show how many layers each of them has.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from normgrowth.network.saturation.result import Saturation
from normgrowth.paper.stages.pretrained_models import joined_levels
from normgrowth.paper.stages.stage import Stage, StageContext, StageSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

ENCODER, DECODER, DROPOUT = "encoder", "decoder", "decoder, dropout"
START, AS_PUBLISHED = "decoder, start token", "decoder, start token, dropout"
STATES, MEMORY = "xlnet, states", "xlnet, memory"
SEED = ", seed "
LAYERS = 12


@dataclass(frozen=True)
class Forms(StageSettings):
    """The width of T5's layers (768 in T5-base), its vocabulary, the seeds of its weights, and the sentences."""

    width: int
    vocabulary: int
    seeds: tuple[int, ...]
    sentences: int


def figure2_forms(context: StageContext, settings: Forms) -> Saturation:
    tasks = [*_tasks(settings)]
    parts = []
    for i, (run, measure) in enumerate(tasks):
        parts.append(context.cached(f"part-{i}", Saturation, measure))
        context.done(i + 1, len(tasks), run)
    return joined_levels(parts)


def _tasks(settings: Forms) -> Iterator[tuple[str, Callable[[], Saturation]]]:
    for seed in settings.seeds:
        for form, options in FORMS.items():
            yield form, partial(_levels, f"{form}{SEED}{seed}", seed, settings, _t5, True, options)
    for form, options in {STATES: {}, MEMORY: {"as_published": True}}.items():
        # Only the memory of a trained XLNet is read, so its weights are not called random.
        yield form, partial(_levels, f"{form}{SEED}0", 0, settings, _xlnet, False, options)


def _levels(
    run: str,
    seed: int,
    settings: Forms,
    make: "Callable[[Forms], nn.Module]",
    random: bool,
    options: dict[str, Any],
) -> Saturation:
    import torch

    from normgrowth.network.models.load import LoadedModel
    from normgrowth.saturation import saturation

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        loaded = LoadedModel(run.partition(SEED)[0], make(settings).eval(), random=random)
        return saturation(loaded, sentences=settings.sentences, exact=False, run=run, **options)


def _t5(settings: Forms) -> "nn.Module":
    import transformers

    shape: dict[str, Any] = {"d_model": settings.width, "d_kv": 64, "d_ff": 4 * settings.width}
    shape |= {"num_layers": LAYERS, "num_heads": settings.width // 64}
    shape |= {"vocab_size": settings.vocabulary, "decoder_start_token_id": 0}
    return transformers.T5Model(transformers.T5Config(**shape))


def _xlnet(settings: Forms) -> "nn.Module":
    import transformers

    return transformers.XLNetModel(
        transformers.XLNetConfig(
            vocab_size=settings.vocabulary, d_model=32, n_layer=LAYERS, n_head=2, d_inner=64
        )
    )


def _decoder_in_training_mode(model: "nn.Module", batch: "dict[str, Tensor]") -> "Any":
    """The states of the decoder that reads the shifted sentence, with dropout."""
    from normgrowth.network.inputs.batches import Batch, decoder_batch

    model.train()  # `saturation` restores the mode
    inputs: dict[str, Any] = decoder_batch(Batch(batch, None), model, "shifted").inputs
    return model(**inputs, output_hidden_states=True, return_dict=True, use_cache=False).decoder_hidden_states


FORMS: dict[str, dict[str, Any]] = {  # of T5 -> options of `saturation`
    ENCODER: {},
    DECODER: {"stack": "decoder"},
    DROPOUT: {"states": _decoder_in_training_mode},
    START: {"stack": "decoder", "decoder_input": "start"},
    AS_PUBLISHED: {"as_published": True},
}

FIGURE2_FORMS = Stage(
    name="figure2_forms",
    title="Figure 2: random T5 by stack, input and mode, and the layers of XLNet",
    version=1,
    settings={
        "demo": Forms(width=256, vocabulary=2000, seeds=(0, 1), sentences=4),
        "paper": Forms(width=768, vocabulary=32_128, seeds=(0, 1), sentences=12),
    },
    takes={"demo": "5 seconds", "paper": "3 minutes"},
    run=figure2_forms,
)
