"""Which predictions a formal language of the lab allows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normgrowth.errors import InputError
from normgrowth.network.inputs.batches import Row
from normgrowth.network.models.encoder_folder import END, Words

LONGEST = 40  # default maximum number of symbols per word


def words_of_language(name: str, count: int, longest: int | None, seed: int) -> list[str]:
    """Words of the language as sentences, with a space between symbols."""
    from normgrowth.network.inputs.formal_languages import language_samples

    return [" ".join(word) for word in language_samples(name, count, longest or LONGEST, seed)]


class Legality:
    """Which token may follow each prefix of the sentences."""

    def __init__(
        self, name: str, tokenizer: Any, rows: Sequence[Row], longest: int | None, objective: str
    ) -> None:
        from normgrowth.network.inputs.formal_languages import language, legal_mask

        if objective != "causal" or not isinstance(tokenizer, Words):
            raise InputError(
                f"language {name!r}: formal languages need a causal model of the lab with its vocabulary"
            )
        symbols = (*language(name).alphabet, END)
        unknown = [symbol for symbol in symbols if symbol not in tokenizer.ids]
        if unknown:
            raise InputError(f"language {name!r}: the model does not know its symbol {unknown[0]!r}")
        columns = [tokenizer.ids[symbol] for symbol in symbols]
        self.allowed: list[Tensor] = []  # for each sentence (tokens, vocabulary)
        for row in rows:
            word = [tokenizer.words[token] for token in row["input_ids"][1:]]
            mask = np.zeros((len(word) + 1, len(tokenizer)), bool)
            mask[:, columns] = legal_mask(name, word, longest)
            self.allowed.append(torch.from_numpy(mask))

    def allows(self, numbers: Sequence[int], first: Tensor) -> Tensor:
        """Whether each top prediction `first` is legal, (rows, tokens). numbers: the sentences of the rows."""
        allowed = torch.stack([self.allowed[number] for number in numbers]).to(first.device)
        return allowed.gather(-1, first[..., None]).squeeze(-1)
