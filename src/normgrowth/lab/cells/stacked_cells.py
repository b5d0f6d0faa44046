"""Cells of a sweep trained together: one pass through a stack of networks, then to each its own optimizer.

The optimizer of a cell is the one that it would have alone, on its row of the stack, so that clipping, momentum and
decay have one definition. What differs from training alone is the order in which numbers are added: outcomes agree up
to rounding. A cell that diverges is taken out, and the others go on without it.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor, nn

from normgrowth.checkpoints.selection import Selection
from normgrowth.errors import InputError
from normgrowth.lab.build import new_model, new_optimizer, total_steps
from normgrowth.lab.cells.cell import SQUARE, Course, Outcome, batches, dev_loss
from normgrowth.lab.cells.stacked_models import Stacked
from normgrowth.lab.data.corpus import Corpus
from normgrowth.lab.settings import TrainSettings, difference
from normgrowth.network.models.encoders import LanguageModel
from normgrowth.tracking.tensor_sums import summed
from normgrowth.tracking.tracked_parameters import watch

# What each cell has to itself; all other settings decide the shape, the first weights, the batches or what counts.
OWN = {
    "optimizer": "adamw",
    "lr": 1e-3,
    "schedule": "constant",
    "warmup": 0,
    "hold": 0,
    "end": 0.0,
    "weight_decay": None,
    "momentum": 0.0,
    "clip": None,
}

TOGETHER = 8
MOST_VALUES = 1 << 15  # of a batch's states: work enough for one network at a time
MOST_WEIGHTS = 1 << 20  # of a network: more would wait for memory, not for operations to start


def in_common(settings: TrainSettings) -> TrainSettings:
    """What cells must share to be trained together: the settings without those that each has to itself."""
    return replace(settings, **OWN)


def stackable(settings: TrainSettings) -> bool:
    """Adafactor factors each matrix; a leaking mask needs the padding of each sequence: such cells train alone."""
    return settings.optimizer != "adafactor" and not settings.leaking


def train_together(
    settings: Sequence[TrainSettings],
    corpus: Corpus,
    *,
    limit: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[Outcome]:
    """Train cells that differ in nothing but how they step (`OWN`); limit: seconds for each cell, of all together."""
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
    """One of the stack: its row of weights, with an optimizer, rates and a course of its own."""

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
        """Its weights, in the model."""
        parameters = dict(model.named_parameters())
        pieces = self.weights.detach().split([parameters[name].numel() for name in self.names])
        with torch.no_grad():
            for name, piece in zip(self.names, pieces, strict=True):
                parameters[name].copy_(piece.view_as(parameters[name]))


class _Stack:
    def __init__(self, settings: Sequence[TrainSettings], corpus: Corpus, model: LanguageModel) -> None:
        counted = {id(tensor) for tensor in watch(model, Selection(settings[0].include)).tensors}
        named = dict(model.named_parameters())
        names = sorted(named, key=lambda name: id(named[name]) not in counted)  # what counts comes first
        self.model, self.names = model, names
        self.numel = sum(named[name].numel() for name in names if id(named[name]) in counted)
        self.net = Stacked(model, len(settings), names)
        total = total_steps(settings[0], corpus)
        square = summed([self.net.flat[0, : self.numel]])[0, SQUARE].item()
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
        columns = summed(self.counted[0], self.counted[1])
        squares = summed(self.counted[2])[:, SQUARE].tolist()
        for i, cell in enumerate(self.cells):
            well[i] = well[i] and cell.course.takes(cell.rates[step], self.before[i], columns[i], squares[i])
        if not all(well):
            self._keep([i for i, fine in enumerate(well) if fine])

    def _keep(self, rows: list[int]) -> None:
        """Go on with some of the cells: numbers that are none would cost time, and so would a cell for nothing."""
        flat = self.net.flat[rows]
        self.net = Stacked(self.model, len(rows), self.names)
        self.net.flat.copy_(flat)
        cells = [self.cells[i] for i in rows]
        for cell, row in zip(cells, self.net.flat, strict=True):
            cell.weights.data = row  # what the optimizer knows of it stays
        self._hold(cells)

    def _hold(self, cells: list[_Cell]) -> None:
        self.cells = cells
        self.gradient = torch.empty_like(self.net.flat)
        self.before = torch.empty_like(self.net.flat[:, : self.numel])
        flat, gradient = self.net.flat[:, : self.numel], self.gradient[:, : self.numel]
        self.counted = [list(flat), list(self.before), list(gradient)]


def _check(settings: Sequence[TrainSettings]) -> None:
    for cell in settings:
        if other := difference(asdict(in_common(settings[0])), asdict(in_common(cell))):
            said = "; ".join(f"{name} {other[1][name]} instead of {old}" for name, old in other[0].items())
            raise InputError(f"cells that train together may differ in {', '.join(OWN)}, not in {said}")
        if not stackable(cell):
            raise InputError(f"cells of {'a leaking mask' if cell.leaking else cell.optimizer} train alone")


def pays(settings: TrainSettings, corpus: Corpus) -> int:
    """How many cells of these settings to train together; 1: each alone.

    A function of the shape and not of the clock, so that the same sweep is cut in the same way each time, and its
    numbers are the same. It goes by `benchmarks/together.py`: where a batch has 14,000 to 25,000 values in a state of
    the network, 8 cells together are 1.3 to 1.8 times as fast, and 16 or 32 hardly more; from 45,000 on most lose.
    (With 33,000 words a stack is 1.6 times as fast, even of one: not by stacking, but by how it takes the loss.)
    """
    if not stackable(settings):
        return 1
    with torch.device("meta"):
        model = LanguageModel(settings.encoder(len(corpus.vocabulary), corpus.positions), tied=settings.tied)
    weights = sum(parameter.numel() for parameter in model.parameters())
    sentence = sum(len(row) - 1 for row in corpus.train) / len(corpus.train)
    values = min(settings.batch, len(corpus.train)) * sentence * settings.width
    return TOGETHER if values <= MOST_VALUES and weights <= MOST_WEIGHTS else 1
