"""What a stage costs: seconds that were measured, or operations over the speed of the machine, for what was never run.

A task is one model or one cell of a grid, on one core. Tasks of a group share the workers; groups come one after the
other. Time is that of the plan: what a run really takes, `pace` learns from it.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from heapq import heapreplace
from math import ceil, log2

import torch

from normgrowth.engine import available_cores
from normgrowth.lab.settings import TrainSettings
from normgrowth.lab.sweep import one_thread

SHARE = (
    0.7  # of the speed of a matrix product, which training steps of 12 layers of 768 reach (PTB, WikiText-2)
)
ROWS, WIDTH = 512, 768  # of that product: a batch of sentences, and the paper's width
PASSES = 4  # that a level of saturation takes, or what heads attend to: as it is, exact, scaled, other tokens


@dataclass(frozen=True)
class Text:
    """The size of a corpus."""

    vocabulary: int
    sentences: int
    tokens: int
    dev_tokens: int


TEXTS = {
    "penn": Text(10_000, 42_068, 929_589, 73_760),
    "wikitext-2": Text(33_231, 17_556, 2_024_702, 211_179),
}


@dataclass(frozen=True)
class Machine:
    """speed: operations a second that one core trains with, all of them at work. gpu: the same of a GPU, if any."""

    cores: int
    speed: float
    gpu: float | None = None

    def each(self, workers: int, on_gpu: bool) -> float:
        """Of each of so many workers."""
        if on_gpu and self.gpu:
            return self.gpu / workers
        return self.speed * min(1.0, self.cores / workers)


@dataclass(frozen=True)
class Cost:
    """trains: in words. seconds: of what runs in this process. tasks: operations of each, by groups."""

    trains: str
    seconds: float = 0.0
    tasks: tuple[tuple[float, ...], ...] = ()
    on_gpu: bool = False  # where there is one

    def on(self, machine: Machine | None, workers: int) -> float:
        """Seconds on a machine with so many workers; without tasks the machine does not matter."""
        if not self.tasks:
            return self.seconds
        if machine is None:
            raise ValueError("tasks cost operations: a machine says how many a second")
        work = sum(span(group, workers) for group in self.tasks)
        return self.seconds + work / machine.each(workers, self.on_gpu)


def span(tasks: Sequence[float], workers: int) -> float:
    """When the last of them ends if each goes to the worker that is free first."""
    ends = [0.0] * workers
    for task in tasks:
        heapreplace(ends, ends[0] + task)
    return max(ends)


def training(settings: TrainSettings, text: Text) -> float:
    """Operations: forward 2 for each weight of a matrix and token, and backward twice as many."""
    tokens = steps_of(settings, text) * settings.batch * text.tokens / text.sentences
    return 3 * tokens * forward(settings, text)


def evaluating(settings: TrainSettings, text: Text, times: int = 1, sentences: int = 0) -> float:
    """Operations of the loss on the development part. sentences: whose saturation and heads are measured with it."""
    tokens = text.dev_tokens + PASSES * sentences * text.tokens / text.sentences
    return times * tokens * forward(settings, text)


def evaluations(settings: TrainSettings, text: Text) -> int:
    """Before training, after each epoch and, if asked for, at powers of 2."""
    steps = steps_of(settings, text)
    epochs = ceil(steps * settings.batch / text.sentences)
    return 1 + epochs + (int(log2(steps)) + 1 if settings.evaluate == "powers" else 0)


def steps_of(settings: TrainSettings, text: Text) -> int:
    """As `total_steps` has it, of a corpus that is not loaded."""
    return min(settings.steps or 2**62, settings.epochs * ceil(text.sentences / settings.batch))


def forward(settings: TrainSettings, text: Text) -> float:
    """Operations for each token: linear maps, the head over the vocabulary, and scores and means of attention."""
    width, layers = settings.width, settings.layers
    weights = layers * (4 * width**2 + 2 * width * settings.feedforward) + width * text.vocabulary
    return 2 * weights + 4 * layers * width * text.tokens / text.sentences


def lab_cost(models: Sequence[TrainSettings]) -> Cost:
    """Each model is a task; those of one corpus share the workers."""
    from normgrowth.paper.stages.language_models import SENTENCES

    groups: dict[str, list[float]] = {}
    for one in models:
        text = TEXTS[one.corpus]
        measured = evaluating(one, text, evaluations(one, text), one.saturation_sentences + SENTENCES)
        groups.setdefault(one.corpus, []).append(training(one, text) + measured)
    return Cost(in_words(models), tasks=tuple(map(tuple, groups.values())), on_gpu=True)


def sweep_cost(cells: Sequence[TrainSettings]) -> Cost:
    """Each cell is a task, and has its loss measured once; cells train on a core."""
    texts = [TEXTS[cell.corpus] for cell in cells]
    each = tuple(training(*pair) + evaluating(*pair) for pair in zip(cells, texts, strict=True))
    return Cost(in_words(cells), tasks=(each,))


def in_words(models: Sequence[TrainSettings]) -> str:
    """What is trained: models of one shape, for as long."""
    one = models[0]
    length = f"{one.steps:,} steps" if one.steps else f"{one.epochs} epoch{'s' if one.epochs > 1 else ''}"
    corpora = " or ".join(dict.fromkeys(model.corpus for model in models))
    return f"{len(models)} models of {one.layers} layers of {one.width}, each {length} of {corpora}"


def this_machine(seconds: float = 1.0) -> Machine:
    """Measured by matrix products, each core its own, over the time that it had: other work here does not count."""
    cores = available_cores()
    with one_thread(), ThreadPoolExecutor(cores) as threads:
        rates = list(threads.map(_core_rate, [seconds] * cores))
    gpu = SHARE * _gpu_rate(seconds) if torch.cuda.is_available() else None
    return Machine(cores, SHARE * sum(rates) / cores, gpu)


def _core_rate(seconds: float) -> float:
    torch.set_num_threads(1)  # threads have counts of their own
    a, b = torch.randn(ROWS, WIDTH), torch.randn(WIDTH, WIDTH)
    torch.mm(a, b)
    products, start, end = 0, time.thread_time(), time.monotonic() + seconds
    while not products or time.monotonic() < end:
        torch.mm(a, b)
        products += 1
    return products * 2 * ROWS * WIDTH**2 / max(time.thread_time() - start, 1e-9)


def _gpu_rate(seconds: float) -> float:
    a, b = (torch.randn(rows, WIDTH, device="cuda") for rows in (ROWS, WIDTH))
    torch.mm(a, b)
    torch.cuda.synchronize()
    products, start = 0, time.monotonic()
    while not products or time.monotonic() < start + seconds:
        for _ in range(100):
            torch.mm(a, b)
        torch.cuda.synchronize()
        products += 100
    return products * 2 * ROWS * WIDTH**2 / (time.monotonic() - start)
