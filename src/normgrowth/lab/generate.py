"""Sample words from a language model, and count how many belong to a formal language."""

from collections.abc import Sequence

import numpy as np
import torch

from normgrowth.lab.data.corpus import Corpus
from normgrowth.network.hidden_states import evaluating
from normgrowth.network.inputs.formal_languages import language
from normgrowth.network.models.encoders import LanguageModel
from normgrowth.tracking.tensor_sums import to_double

DRAWN = 100  # sampled words: the standard error of a share is at most 0.05


def draw_words(
    model: LanguageModel, count: int, longest: int, seed: int, end: int = 0
) -> list[list[int] | None]:
    """Return the ids of words sampled from the model; None for a word with more than `longest` symbols.

    The result depends only on the seed, and the global random state is not used.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    device = next(model.parameters()).device
    ids = torch.full((count, 1), end, device=device)
    with evaluating(model):
        for _ in range(longest + 1):
            states = model.encoder(ids)
            assert isinstance(states, torch.Tensor)
            below = to_double(model.head(states[:, -1])).softmax(-1).cumsum(-1)
            u = torch.from_numpy(rng.random((count, 1))).to(below.device)
            chosen = torch.searchsorted(below, u * below[:, -1:], right=True).clamp(max=below.shape[1] - 1)
            ids = torch.cat([ids, chosen.to(device)], 1)
            if (ids[:, 1:] == end).any(1).all():
                break
    return [row[: row.index(end)] if end in row else None for row in ids[:, 1:].tolist()]


def member_share(model: LanguageModel, corpus: Corpus, count: int = DRAWN, seed: int = 0) -> float:
    """Return the share of sampled words that belong to the language of the corpus and are not too long."""
    assert corpus.language is not None
    assert corpus.longest is not None
    known, words = language(corpus.language), corpus.vocabulary.words

    def is_member(ids: Sequence[int] | None) -> bool:
        return ids is not None and known.contains([words[i] for i in ids])

    return float(np.mean([is_member(ids) for ids in draw_words(model, count, corpus.longest, seed)]))
