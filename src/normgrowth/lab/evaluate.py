"""Evaluate a language model on held-out rows: loss, accuracy and saturation.

dev_loss       nats per token, over all tokens of the development part, including the end of each sentence
perplexity     exp(dev_loss). The authors' code averages 2^(loss in nats) over sentences, which is a different number
accuracy       share of tokens that the model ranks first
legal_share    formal language: share of places where the top-ranked symbol may follow
legal_mass     formal language: probability of all symbols that may follow, averaged over places
member_share   formal language: share of 100 words sampled from the model that belong to the language
train_loss     mean over the tokens of all steps since the last evaluation, before each step
saturation...  saturation of each layer (`normgrowth.saturation`) on the first sentences of the development part
test_...       the same scores on the test part, for the best checkpoint at the end
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import exp, nan
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from normgrowth.lab.data.corpus import Corpus, Row, padded
from normgrowth.lab.generate import member_share
from normgrowth.network.hidden_states import evaluating
from normgrowth.network.inputs.formal_languages import language, legal_mask
from normgrowth.network.models.encoders import Encoder, LanguageModel
from normgrowth.records import Block, Records
from normgrowth.saturation import saturation
from normgrowth.tracking.distributed import is_parallel, rank, world_size
from normgrowth.tracking.tensor_sums import to_double

BATCH_TOKENS = 4096


class NextToken(nn.Module):
    """The sum over tokens of −log p(token | previous tokens).

    Rows are padded on the right, which a causal model does not see. Only real places are passed to the head.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        return functional.cross_entropy(self.logits(ids, real), ids[:, 1:][real[:, 1:]], reduction="sum")

    def logits(self, ids: Tensor, real: Tensor) -> Tensor:
        """Return the logits of real places, concatenated."""
        # A leaking mask exposes later tokens, so it must hide the padding and the last end mark of shorter rows.
        mask = real[:, 1:] if self.model.config.leaking else None
        states = cast(Tensor, self.model.encoder(ids[:, :-1], mask))
        return self.model.head(states[real[:, 1:]])


def evaluate(model: NextToken, rows: Sequence[Row], corpus: Corpus) -> dict[str, float]:
    """Return loss, perplexity and accuracy over rows; under torchrun, each rank evaluates a part of the rows."""
    legality = _Legality(corpus) if corpus.language else None
    sums = np.zeros(5)
    device = next(model.parameters()).device
    with evaluating(model):
        for chosen in _by_length(rows, rank(), world_size()):
            own = [rows[i] for i in chosen]
            ids, real = (torch.from_numpy(array).to(device) for array in padded(own))
            logits, targets = model.logits(ids, real), ids[:, 1:][real[:, 1:]]
            loss = to_double(functional.cross_entropy(logits, targets, reduction="none")).sum()
            first = logits.argmax(-1)
            sums[:3] += loss.item(), (first == targets).sum().item(), len(targets)
            if legality:
                sums[3:] += legality(own, logits, first)
    if is_parallel():
        together = torch.from_numpy(sums).to(device)
        torch.distributed.all_reduce(together)
        sums = together.cpu().numpy()
    loss, right, tokens, legal, mass = sums.tolist()
    found = {"loss": loss / tokens, "perplexity": _exp(loss / tokens), "accuracy": right / tokens}
    if legality:
        found |= {"legal_share": legal / tokens, "legal_mass": mass / tokens}
        found["member_share"] = member_share(model.model, corpus)
    return found


def margins(model: NextToken, rows: Sequence[Row]) -> NDArray[np.float64]:
    """Return the margin of every token: its logit minus the largest logit of another token. Positive: ranked first."""
    found = []
    device = next(model.parameters()).device
    with evaluating(model):
        for chosen in _by_length(rows, 0, 1):
            ids, real = (torch.from_numpy(array).to(device) for array in padded([rows[i] for i in chosen]))
            logits, targets = to_double(model.logits(ids, real)), ids[:, 1:][real[:, 1:]][:, None]
            others = logits.scatter(1, targets, -torch.inf).amax(1)
            found.append((logits.gather(1, targets)[:, 0] - others).cpu().numpy())
    return np.concatenate(found)


def levels(model: LanguageModel, rows: Sequence[Row]) -> list[Block]:
    """Return the saturation of every layer, in the exact limit and at c = 1000."""
    batches, device = [], next(model.parameters()).device
    for chosen in _by_length(rows, 0, 1):
        ids, real = (torch.from_numpy(array).to(device) for array in padded([rows[i][:-1] for i in chosen]))
        batches.append({"input_ids": ids, "attention_mask": real.long()})
    leaking = model.config.leaking

    def states(encoder: nn.Module, batch: Any) -> list[Tensor]:
        mask = batch["attention_mask"] if leaking else None
        return cast(list[Tensor], cast(Encoder, encoder)(batch["input_ids"], mask, return_states=True))

    return _blocks(saturation(model.encoder, inputs=batches, states=states).records)


def as_blocks(step: int, values: dict[str, float], more: Sequence[Block] = ()) -> list[Block]:
    own = {name: np.array([[value]]) for name, value in values.items()}
    rest = [replace(block, steps=[step]) for block in more]
    return [Block("model", ["model"], [None], [None], [step], own), *rest]


def _blocks(records: Records) -> list[Block]:
    """Convert records back to blocks: the levels of layers and of the model, at each scale of the weights."""
    blocks = []
    for level, scale in product(("layer", "model"), records.distinct("scale")):
        part = records.where(level=level, scale=scale)
        names = part.distinct("name")
        numbers = {row["name"]: row["layer"] for row in part.table.select(["name", "layer"]).to_pylist()}
        values = {
            quantity: part.where(quantity=quantity).table["value"].to_numpy().reshape(1, -1)
            for quantity in part.distinct("quantity")
            if quantity.startswith("saturation")
        }
        axes = {} if scale is None else {"scale": scale}
        layers, none = [numbers[name] for name in names], [None] * len(names)
        blocks.append(Block(level, names, layers, none, [0], values, constants=axes))
    return blocks


class _Legality:
    """Counts the predictions of a model that a formal language allows."""

    def __init__(self, corpus: Corpus) -> None:
        assert corpus.language is not None
        self.name, self.words = corpus.language, corpus.vocabulary.words
        known = language(self.name)
        self.columns = [corpus.vocabulary.ids[symbol] for symbol in (*known.alphabet, self.words[0])]
        self.longest = corpus.longest

    def __call__(self, rows: Sequence[Row], logits: Tensor, first: Tensor) -> tuple[float, float]:
        allowed = torch.zeros(logits.shape, dtype=torch.bool)
        masks = [legal_mask(self.name, [self.words[i] for i in row[1:-1]], self.longest) for row in rows]
        allowed[:, self.columns] = torch.from_numpy(np.concatenate(masks))
        legal = allowed.gather(1, first.cpu()[:, None]).sum().item()
        mass = to_double(logits).softmax(-1).cpu()[allowed].sum().item()
        return float(legal), float(mass)


def _by_length(rows: Sequence[Row], own: int, ranks: int) -> Iterator[NDArray[np.int64]]:
    """Yield batches of rows of similar length with about BATCH_TOKENS tokens; each rank gets its own rows."""
    order = np.argsort([-len(row) for row in rows], kind="stable")[own::ranks]
    start = 0
    while start < len(order):
        count = max(1, BATCH_TOKENS // len(rows[order[start]]))
        yield order[start : start + count]
        start += count


def _exp(loss: float) -> float:
    try:
        return exp(loss)
    except OverflowError:
        return nan
