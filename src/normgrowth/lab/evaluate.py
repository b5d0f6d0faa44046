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
from math import exp, nan
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from normgrowth.lab.data.corpus import Corpus, Row, padded
from normgrowth.lab.generate import member_share
from normgrowth.network.behavior.legality import allowed_tokens
from normgrowth.network.behavior.margins import token_margins
from normgrowth.network.hidden_states import evaluating
from normgrowth.network.models.encoders import Encoder, LanguageModel
from normgrowth.network.models.load import LoadedModel
from normgrowth.records import Records
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
    sums = np.zeros(5)
    with evaluating(model):
        for own, ids, real in _batches(model, rows, rank(), world_size()):
            logits, targets = model.logits(ids, real), ids[:, 1:][real[:, 1:]]
            loss = to_double(functional.cross_entropy(logits, targets, reduction="none")).sum()
            first = logits.argmax(-1)
            sums[:3] += loss.item(), (first == targets).sum().item(), len(targets)
            if corpus.language:
                sums[3:] += _legality(corpus, own, logits, first)
    if is_parallel():
        together = torch.from_numpy(sums).to(next(model.parameters()).device)
        torch.distributed.all_reduce(together)
        sums = together.cpu().numpy()
    loss, right, tokens, legal, mass = sums.tolist()
    found = {"loss": loss / tokens, "perplexity": _exp(loss / tokens), "accuracy": right / tokens}
    if corpus.language:
        found |= {"legal_share": legal / tokens, "legal_mass": mass / tokens}
        found["member_share"] = member_share(model.model, corpus)
    return found


def margins(model: NextToken, rows: Sequence[Row]) -> NDArray[np.float64]:
    """Return the margin of every token: its logit minus the largest logit of another token. Positive: ranked first."""
    found = []
    with evaluating(model):
        for _, ids, real in _batches(model, rows):
            own = token_margins(to_double(model.logits(ids, real)), ids[:, 1:][real[:, 1:]])
            found.append(own.cpu().numpy())
    return np.concatenate(found)


def levels(model: LanguageModel, rows: Sequence[Row], run: str, step: int) -> Records:
    """Return the saturation of every layer, in the exact limit and at c = 1000."""
    batches = [
        {"input_ids": ids, "attention_mask": real.long()}
        for _, ids, real in _batches(model, [row[:-1] for row in rows])
    ]
    leaking = model.config.leaking

    def states(encoder: nn.Module, batch: Any) -> list[Tensor]:
        mask = batch["attention_mask"] if leaking else None
        return cast(list[Tensor], cast(Encoder, encoder)(batch["input_ids"], mask, return_states=True))

    import pyarrow.compute as pc

    loaded = LoadedModel(run, model.encoder, step=step)
    found = saturation(loaded, inputs=batches, states=states, run=run).records
    sizes = pc.starts_with(found.table["quantity"].cast("string"), "evaluation_")  # pyright: ignore[reportAttributeAccessIssue]
    return Records(found.table.filter(pc.invert(sizes)))  # pyright: ignore[reportAttributeAccessIssue]


def _legality(corpus: Corpus, rows: Sequence[Row], logits: Tensor, first: Tensor) -> tuple[float, float]:
    """Return the number of legal predictions, and the sum of the probabilities of all legal symbols."""
    assert corpus.language is not None
    masks = [allowed_tokens(corpus.language, corpus.vocabulary, row[1:-1], corpus.longest) for row in rows]
    allowed = torch.cat(masks)
    legal = allowed.gather(1, first.cpu()[:, None]).sum().item()
    return float(legal), to_double(logits).softmax(-1).cpu()[allowed].sum().item()


def _batches(
    model: nn.Module, rows: Sequence[Row], own: int = 0, ranks: int = 1
) -> Iterator[tuple[list[Row], Tensor, Tensor]]:
    """Yield batches of rows of similar length with about BATCH_TOKENS tokens, their ids and the mask of real tokens.

    Each rank gets its own rows.
    """
    device = next(model.parameters()).device
    order = np.argsort([-len(row) for row in rows], kind="stable")[own::ranks]
    start = 0
    while start < len(order):
        count = max(1, BATCH_TOKENS // len(rows[order[start]]))
        chosen = [rows[i] for i in order[start : start + count]]
        ids, real = (torch.from_numpy(array).to(device) for array in padded(chosen))
        yield chosen, ids, real
        start += count


def _exp(loss: float) -> float:
    try:
        return exp(loss)
    except OverflowError:
        return nan
