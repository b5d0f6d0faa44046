"""Train cells of a sweep together: one pass through a stack of networks, then a separate optimizer for each cell.

The optimizer of a cell is the same as for training alone, applied to its row of the stack, so clipping, momentum and
decay have one definition. Only the order of summation differs from training alone, so outcomes agree up to rounding. A
cell that diverges is removed, and the others continue.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.errors import InputError
from normgrowth.lab.build import new_model, new_optimizer, total_steps
from normgrowth.lab.cells.cell import SQUARE, Course, Outcome, batches, dev_loss
from normgrowth.lab.cells.stacked_models import Stacked
from normgrowth.lab.data.corpus import Corpus
from normgrowth.lab.settings import DEFAULTS, TrainSettings
from normgrowth.network.models.encoders import LanguageModel
from normgrowth.tracking.tensor_sums import tensor_sums
from normgrowth.tracking.tracked_parameters import watch

# Settings in which stacked cells may differ. The others determine shape, first weights, batches or counted parameters.
OWN = ("optimizer", "lr", "schedule", "warmup", "hold", "end", "weight_decay", "momentum", "clip")

TOGETHER = 8
MOST_VALUES = 1 << 15  # values in a hidden state of a batch: above this, one network alone keeps the CPU busy
MOST_WEIGHTS = 1 << 20  # weights of a network: above this, memory is the bottleneck, not launching operations


def in_common(settings: TrainSettings) -> TrainSettings:
    """Return the settings that cells must share to be stacked; the others have their defaults."""
    return replace(settings, **{name: DEFAULTS[name] for name in OWN})


def stackable(settings: TrainSettings) -> bool:
    """Whether cells with these settings can be stacked.

    Adafactor factors each matrix, and a leaking mask needs the padding of each sequence; such cells train alone.
    """
    return settings.optimizer != "adafactor" and not settings.leaking


def train_together(
    settings: Sequence[TrainSettings],
    corpus: Corpus,
    *,
    limit: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[Outcome]:
    """Train cells that differ only in the settings `OWN`. limit: seconds per cell; the stack may use their sum."""
    start = time.monotonic()
    if not settings:
        return []
    _check(settings)
    model = new_model(settings[0], corpus).to(dtype)
    stack = _Stack(settings, corpus, model)
    for step, (ids, real, tokens) in enumerate(batches(settings[0], corpus)):
        if limit is not None and time.monotonic() - start > limit * len(settings):
            for cell in stack.cells:
                cell.course.timed_out = True
            break
        stack.step(step, ids, real, tokens)
        if not stack.cells:
            break
    outcomes = []
    for cell in stack.all:
        cell.into(model)
        outcomes.append((cell.course, dev_loss(model, settings[0], corpus, cell.course)))
    return [course.outcome(loss, start, len(settings)) for course, loss in outcomes]


class _Cell:
    """One cell of the stack: its row of weights, its optimizer, learning rates and course."""

    def __init__(
        self, settings: TrainSettings, total: int, course: Course, row: Tensor, names: Sequence[str]
    ) -> None:
        self.settings, self.course, self.names = settings, course, names
        self.weights = nn.Parameter(row)
        self.optimizer = new_optimizer(settings, nn.ParameterList([self.weights]))
        self.rates = settings.rate(total)(np.arange(total)).tolist()

    def step(self, step: int, gradient: Tensor) -> None:
        self.weights.grad = gradient
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(self.weights, self.settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates[step]
        self.optimizer.step()

    def into(self, model: LanguageModel) -> None:
        """Copy the weights of the cell into the model."""
        parameters = dict(model.named_parameters())
        pieces = self.weights.detach().split([parameters[name].numel() for name in self.names])
        with torch.no_grad():
            for name, piece in zip(self.names, pieces, strict=True):
                parameters[name].copy_(piece.view_as(parameters[name]))


class _Stack:
    def __init__(self, settings: Sequence[TrainSettings], corpus: Corpus, model: LanguageModel) -> None:
        counted = {id(tensor) for tensor in watch(model, Selection(settings[0].include)).tensors}
        named = dict(model.named_parameters())
        names = sorted(named, key=lambda name: id(named[name]) not in counted)  # counted tensors come first
        self.model, self.names = model, names
        self.numel = sum(named[name].numel() for name in names if id(named[name]) in counted)
        self.net = Stacked(model, len(settings), names)
        total = total_steps(settings[0], corpus)
        square = tensor_sums([self.net.flat[0, : self.numel]])[0, SQUARE].item()
        self.all = [
            _Cell(own, total, Course(own, self.numel, square), row, names)
            for own, row in zip(settings, self.net.flat, strict=True)
        ]
        self._hold(self.all)

    def step(self, step: int, ids: Tensor, real: Tensor, tokens: int) -> None:
        losses = self.net.losses(ids, real)
        self.net.gradients(losses * (1 / tokens), self.gradient)
        self.before.copy_(self.net.flat[:, : self.numel])
        well = [
            cell.course.meets(loss, tokens) for cell, loss in zip(self.cells, losses.tolist(), strict=True)
        ]
        for cell, gradient, fine in zip(self.cells, self.gradient, well, strict=True):
            if fine:
                cell.step(step, gradient)
        columns = tensor_sums(self.counted[0], self.counted[1])
        squares = tensor_sums(self.counted[2])[:, SQUARE].tolist()
        for i, cell in enumerate(self.cells):
            well[i] = well[i] and cell.course.takes(cell.rates[step], self.before[i], columns[i], squares[i])
        if not all(well):
            self._keep([i for i, fine in enumerate(well) if fine])

    def _keep(self, rows: list[int]) -> None:
        """Continue with some of the cells. Diverged cells are dropped, because NaN work is wasted."""
        flat = self.net.flat[rows]
        self.net = Stacked(self.model, len(rows), self.names)
        self.net.flat.copy_(flat)
        cells = [self.cells[i] for i in rows]
        for cell, row in zip(cells, self.net.flat, strict=True):
            cell.weights.data = row  # keeps the state of the optimizer
        self._hold(cells)

    def _hold(self, cells: list[_Cell]) -> None:
        self.cells = cells
        self.gradient = torch.empty_like(self.net.flat)
        self.before = torch.empty_like(self.net.flat[:, : self.numel])
        flat, gradient = self.net.flat[:, : self.numel], self.gradient[:, : self.numel]
        self.counted = [list(flat), list(self.before), list(gradient)]


def _check(settings: Sequence[TrainSettings]) -> None:
    common = in_common(settings[0]).request()
    for cell in settings:
        own = in_common(cell).request()
        if other := [name for name in own if own[name] != common[name]]:
            said = "; ".join(f"{name} {own[name]} instead of {common[name]}" for name in other)
            raise InputError(f"stacked cells can differ only in {', '.join(OWN)}, got {said}")
        if not stackable(cell):
            raise InputError(
                f"cells with {'a leaking mask' if cell.leaking else cell.optimizer} cannot be stacked"
            )


def pays(settings: TrainSettings, corpus: Corpus) -> int:
    """Return how many cells with these settings to train in one stack; 1 means alone.

    The number depends on the shape and not on timings, so the same sweep is always split in the same way and gives the
    same numbers. It is based on `benchmarks/together.py`: if a hidden state of a batch has 14,000 to 25,000 values, 8
    stacked cells are 1.3 to 1.8 times as fast, and 16 or 32 hardly faster; from 45,000 values on, most stacks are
    slower. (With 33,000 words, even a stack of one is 1.6 times as fast, because of its loss computation.)
    """
    if not stackable(settings):
        return 1
    with torch.device("meta"):
        model = LanguageModel(settings.encoder(len(corpus.vocabulary), corpus.positions), tied=settings.tied)
    weights = sum(parameter.numel() for parameter in model.parameters())
    sentence = sum(len(row) - 1 for row in corpus.train) / len(corpus.train)
    values = min(settings.batch, len(corpus.train)) * sentence * settings.width
    return TOGETHER if values <= MOST_VALUES and weights <= MOST_WEIGHTS else 1
