"""`saturation(..., as_published=True)`: levels as measured by the script behind the paper's Figure 2.

The script compares f(x; θ) with f(x; 1000θ) and reads the third output of every model:

    BERT, RoBERTa      the states of all layers
    T5                 the states of the *decoder*, which here reads only its start token
    XLNet, trained     the memory for the next segment: the inputs of the layers, so the last layer is missing
    random weights     models that are not in evaluation mode: dropout is active and differs between passes

The authors' intention is unknown, so this form follows the published numbers of random networks. For a random T5-base,
the published level falls from 0.44 in the first layer to 0.36 in the last. Measured here (two seeds, 12 sentences):
encoder 0.28 rising to 0.45; decoder that reads the shifted sentence 0.41 rising to 0.50; start token alone 0.63 falling
to 0.54; start token alone with dropout 0.44 falling to 0.27, which is the closest. For random BERT, RoBERTa and XLNet
all variants are near 0 and cannot be distinguished. The published line of the random XLNet has all 12 layers, the line
of the trained XLNet has 11.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from normgrowth.errors import InputError
from normgrowth.network.saturation.level_options import LevelOptions


@dataclass(frozen=True)
class PublishedForm:
    """The options for the published form of one model. training: with dropout. notes: deviations from the paper."""

    options: LevelOptions
    training: bool
    notes: tuple[str, ...]


def published_form(model: nn.Module, random_weights: bool, options: LevelOptions) -> PublishedForm:
    """The options with which the authors' script measures a model."""
    if not options.c:
        raise InputError("as_published compares with c times the weights: pass a value of c, such as 1000")
    if options.states is not None:
        raise InputError("as_published selects the hidden states itself; do not pass states=")
    config: Any = getattr(model, "config", None)
    found = replace(options, exact=False, hard_attention=False)
    notes = ["as published: no exact limit"]
    if getattr(config, "is_encoder_decoder", False):
        found = replace(found, stack="decoder", decoder_input="start")
        notes.append("as published: states of the decoder, which reads its start token")
    elif getattr(config, "model_type", None) == "xlnet" and not random_weights:
        found = replace(found, states=_memory)
        notes.append("as published: the memory of XLNet, which lacks the last layer")
    if random_weights:
        notes.append("as published: random weights in training mode, with dropout")
    return PublishedForm(found, random_weights, tuple(notes))


def _memory(model: nn.Module, batch: Any) -> Sequence[Tensor]:
    """XLNet's memory for the next segment: the input of each of its layers."""
    memory = model(**batch, use_mems=True, return_dict=True).mems
    return [state.transpose(0, 1) for state in memory]  # (tokens, rows, size) -> (rows, tokens, size)
