"""Which predictions a formal language of the lab allows."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from normgrowth.errors import InputError
from normgrowth.network.inputs.formal_languages import language, language_samples, legal_mask
from normgrowth.network.inputs.tokenized_text import Row
from normgrowth.network.models.encoder_folder import END, Words

LONGEST = 40  # default maximum number of symbols per word


def words_of_language(name: str, count: int, longest: int | None, seed: int) -> list[str]:
    """Words of the language as sentences, with a space between symbols."""
    return [" ".join(word) for word in language_samples(name, count, longest or LONGEST, seed)]


def allowed_tokens(name: str, vocabulary: Words, word: Iterable[int], longest: int | None) -> Tensor:
    """Which tokens may follow each prefix of a word, from the empty one on: (tokens, vocabulary)."""
    mask = legal_mask(name, [vocabulary.words[i] for i in word], longest)
    allowed = torch.zeros(len(mask), len(vocabulary), dtype=torch.bool)
    allowed[:, [vocabulary.ids[symbol] for symbol in (*language(name).alphabet, END)]] = torch.from_numpy(
        mask
    )
    return allowed


class Legality:
    """Which token may follow each prefix of the sentences."""

    def __init__(
        self, name: str, tokenizer: Any, rows: Sequence[Row], longest: int | None, objective: str
    ) -> None:
        if objective != "causal" or not isinstance(tokenizer, Words):
            raise InputError(
                f"language {name!r}: formal languages need a causal model of the lab with its vocabulary"
            )
        unknown = [symbol for symbol in (*language(name).alphabet, END) if symbol not in tokenizer.ids]
        if unknown:
            raise InputError(f"language {name!r}: the model does not know its symbol {unknown[0]!r}")
        self.allowed = [allowed_tokens(name, tokenizer, row["input_ids"][1:], longest) for row in rows]

    def allows(self, numbers: Sequence[int], first: Tensor) -> Tensor:
        """Whether each top prediction `first` is legal, (rows, tokens). numbers: the sentences of the rows."""
        allowed = torch.stack([self.allowed[number] for number in numbers]).to(first.device)
        return allowed.gather(-1, first[..., None]).squeeze(-1)
