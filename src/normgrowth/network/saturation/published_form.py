"""`saturation(..., as_published=True)`: levels as the script behind the paper's Figure 2 took them.

The script compares f(x; θ) with f(x; 1000θ) and reads the third output of every model. That is

    BERT, RoBERTa      the states of all layers
    T5                 the states of the *decoder*, which here reads its start token alone
    XLNet, trained     the memory for the next segment: the inputs of the layers, so that the last layer is missing
    random weights     models that were never put into evaluation mode: with dropout, of which each pass draws its own

Which of these the authors meant is not known; the published numbers of random networks decide. For the first layer of
a random T5-base they have 0.44, falling to 0.36 in the last. By passes here (two seeds, 12 sentences): encoder 0.28
rising to 0.45; decoder that reads the shifted sentence 0.41 rising to 0.50; start token alone 0.63 falling to 0.54;
start token alone with dropout 0.44 falling to 0.27, which is the closest. Of BERT, RoBERTa and XLNet random levels are
near 0 either way, and decide nothing. The published line of the random XLNet has all 12 layers, that of the trained
one 11.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from normgrowth.errors import InputError
from normgrowth.network.saturation.saturation import LevelOptions


@dataclass(frozen=True)
class PublishedForm:
    """The options that give the published form of one model; training: with dropout; notes: what is unlike the text."""

    options: LevelOptions
    training: bool
    notes: tuple[str, ...]


def published_form(model: nn.Module, random_weights: bool, options: LevelOptions) -> PublishedForm:
    """What the authors' script measures of a model."""
    if not options.c:
        raise InputError("as_published compares with c times the weights: give a value of c, such as 1000")
    if options.states is not None:
        raise InputError("as_published chooses the states of a model of transformers: leave states out")
    config: Any = getattr(model, "config", None)
    found = replace(options, exact=False, hard_attention=False)
    notes = ["as published: no exact limit"]
    if getattr(config, "is_encoder_decoder", False):
        found = replace(found, stack="decoder", decoder_input="start")
        notes.append("as published: states of the decoder, which reads its start token")
    elif getattr(config, "model_type", None) == "xlnet" and not random_weights:
        found = replace(found, states=_memory)
        notes.append("as published: the memory of XLNet, which is without the last layer")
    if random_weights:
        notes.append("as published: random weights in training mode, with dropout")
    return PublishedForm(found, random_weights, tuple(notes))


def _memory(model: nn.Module, batch: Any) -> Sequence[Tensor]:
    """What XLNet keeps for the next segment: the input of each of its layers."""
    memory = model(**batch, use_mems=True, return_dict=True).mems
    return [state.transpose(0, 1) for state in memory]  # (tokens, rows, size) -> (rows, tokens, size)


__all__ = ["PublishedForm", "published_form"]
