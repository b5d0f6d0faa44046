"""One cell of a sweep: a run without an output folder, whose outcome is a few numbers.

It trains like `train`, with the same initial weights and batches, and its final weights are bit-identical. It keeps
the sums (`tracking.tensor_sums`) of every step, so the growth budget covers the whole run and not a sample of steps.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, isfinite, nan, sqrt

import numpy as np
import torch
from torch import Tensor, nn

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.lab.build import new_model, new_optimizer, total_steps
from normgrowth.lab.data.corpus import Corpus, in_batches, padded
from normgrowth.lab.evaluate import NextToken, evaluate
from normgrowth.lab.settings import TrainSettings
from normgrowth.moments.moments import Moments, quantities
from normgrowth.network.models.encoders import LanguageModel
from normgrowth.tracking.tensor_sums import local, tensor_sums
from normgrowth.tracking.tracked_parameters import watch

# Columns of `summed`: Σθ² and the number of nonfinite values after a step; Σθ² and Σθδ with θ before the step.
SQUARE, NONFINITE, BEFORE, DOT = 0, 2, 3, 4
ENDS = 0.05  # fraction of the steps over which the first and the last loss are averaged
DECOUPLED = ("adamw", "adafactor")  # they subtract ηλθ from the weights, apart from the gradient step


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell. Norms, growth and gradients are those of the parameters that `include` selects.

    steps              number of completed steps, all with finite weights
    norm_start, _end   norm before the first and after the last of these steps
    growth             ‖θ_T‖² − ‖θ_0‖², the sum of the next three terms, each summed over steps in float64
    growth_decay       contribution of decay to 2⟨θ,δ⟩. For plain SGD, −2ηλ‖θ‖² per step. For decoupled decay, the same
                       up to rounding of the weights: in float32 it is 0 if ηλ is below 3·10⁻⁸. With momentum,
                       −2η⟨θ,d⟩, where d is the part of the buffer that comes from λθ; this is exact because the buffer
                       is linear. NaN for Adam with coupled decay, where the contribution cannot be separated
    growth_alignment   the rest of 2⟨θ,δ⟩ (all of it if growth_decay is NaN)
    growth_steps       ‖δ‖²
    loss_start, _end   nats per token of training batches before their steps, over the first and last 5% of the steps
    dev_loss           nats per token after the last step, on the development sentences; NaN if the cell diverged
    gradient_norm      root mean square over steps of the gradient norm after clipping
    numel              number of counted parameters
    diverged_at        the step at which the loss or a weight became NaN or infinite; a large finite loss does not count
    timed_out          whether the time limit stopped the cell after `steps`
    seconds            wall-clock time; stacked cells share it equally
    """

    steps: int
    norm_start: float
    norm_end: float
    growth: float
    growth_alignment: float
    growth_steps: float
    growth_decay: float
    loss_start: float
    loss_end: float
    dev_loss: float
    gradient_norm: float
    numel: int
    diverged: bool
    diverged_at: int | None
    timed_out: bool
    seconds: float


def train_alone(
    settings: TrainSettings, corpus: Corpus, *, limit: float | None = None, dtype: torch.dtype = torch.float32
) -> Outcome:
    """Train one cell on the CPU. limit: seconds after which training stops."""
    start = time.monotonic()
    model = new_model(settings, corpus).to(dtype)
    predict, optimizer = NextToken(model), new_optimizer(settings, model)
    rate = settings.rate(total_steps(settings, corpus))
    counted = watch(model, Selection(settings.include)).tensors
    weights = [local(tensor) for tensor in counted]
    before = torch.cat(weights)
    after, gradient = torch.empty_like(before), torch.empty_like(before)
    course = Course(settings, len(before), tensor_sums([before])[0, SQUARE].item())
    for step, (ids, real, tokens) in enumerate(batches(settings, corpus)):
        if limit is not None and time.monotonic() - start > limit:
            course.timed_out = True
            break
        lr = rate(step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss = predict(ids, real)
        if not course.meets(loss.item(), tokens):
            break
        (loss * (1 / tokens)).backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        torch.cat([tensor.grad.flatten() for tensor in counted if tensor.grad is not None], out=gradient)
        optimizer.step()
        torch.cat(weights, out=after)  # one long row, because summing many short ones costs more
        square = tensor_sums([gradient])[0, SQUARE].item()
        if not course.takes(lr, before, tensor_sums([after], [before])[0], square):
            break
        before, after = after, before
    return course.outcome(dev_loss(model, settings, corpus, course), start)


class Course:
    """The record of one cell during training: its losses, and the sums of each step."""

    def __init__(self, settings: TrainSettings, numel: int, square: float) -> None:
        self.settings, self.numel, self.square = settings, numel, square
        self.losses: list[tuple[float, int]] = []  # sum over tokens, tokens
        self.columns: list[Tensor] = []
        self.gradients: list[float] = []
        self.decays: list[float] = []
        self.buffer: Tensor | None = None
        self.diverged_at: int | None = None
        self.timed_out = False

    @property
    def steps(self) -> int:
        return len(self.columns)

    def meets(self, loss: float, tokens: int) -> bool:
        """Record the loss before a step; return whether it is finite."""
        if not isfinite(loss):
            self.diverged_at = self.steps + 1
            return False
        self.losses.append((loss, tokens))
        return True

    def takes(self, rate: float, before: Tensor, columns: Tensor, gradient: float) -> bool:
        """Record a step; return whether its weights are finite.

        columns: the sums after the step, against before. gradient: Σg².
        """
        if columns[NONFINITE]:
            self.diverged_at = self.steps + 1
            return False
        self.decays.append(self._decay(rate, before, columns[BEFORE].item()))
        self.columns.append(columns)
        self.gradients.append(gradient)
        return True

    def _decay(self, rate: float, before: Tensor, square: float) -> float:
        """Return the contribution of decay to 2⟨θ,δ⟩ in this step."""
        decay, momentum = self.settings.decay, self.settings.momentum
        if not decay:
            return 0.0
        if self.settings.optimizer == "sgd" and not momentum:
            return -2 * rate * decay * square
        if self.settings.optimizer in DECOUPLED:
            decayed = before * (1 - rate * decay)  # the same rounding as in the optimizer
            return 2 * tensor_sums([decayed], [before])[0, DOT].item()
        if self.settings.optimizer != "sgd":
            return nan
        exact = before.double()
        if self.buffer is None:
            self.buffer = torch.zeros_like(exact)
        self.buffer.mul_(momentum).add_(exact, alpha=decay)
        return -2 * rate * torch.dot(exact, self.buffer).item()

    def outcome(self, dev_loss: float, start: float, cells: int = 1) -> Outcome:
        if self.diverged_at is None and not isfinite(dev_loss):
            self.diverged_at = self.steps
        columns = torch.stack([torch.zeros(6, dtype=torch.float64), *self.columns])[1:].numpy()
        numel = np.full(len(columns), self.numel, np.int64)
        found = quantities(Moments.from_columns(numel, columns, ["previous"]))
        growth, aligned, stepped = (
            float(found[name].sum()) for name in ("growth", "growth_alignment", "growth_steps")
        )
        decay = float(np.sum(self.decays))
        return Outcome(
            steps=self.steps,
            norm_start=sqrt(self.square),
            norm_end=float(found["norm"][-1]) if self.steps else sqrt(self.square),
            growth=growth,
            growth_alignment=aligned if decay != decay else aligned - decay,
            growth_steps=stepped,
            growth_decay=decay,
            loss_start=_mean(self.losses[: ceil(ENDS * len(self.losses))]),
            loss_end=_mean(self.losses[-ceil(ENDS * len(self.losses)) :]),
            dev_loss=nan if self.diverged_at is not None else dev_loss,
            gradient_norm=sqrt(np.mean(self.gradients)) if self.steps else nan,
            numel=self.numel,
            diverged=self.diverged_at is not None,
            diverged_at=self.diverged_at,
            timed_out=self.timed_out,
            seconds=(time.monotonic() - start) / cells,
        )


def batches(settings: TrainSettings, corpus: Corpus) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield for each step the ids, the mask of real tokens, and the number of predicted tokens."""
    lengths = [len(row) for row in corpus.train]
    left, epoch = total_steps(settings, corpus), 0
    while left:
        rng = np.random.default_rng([settings.seed, epoch])
        for chosen in in_batches(lengths, settings.batch, rng)[:left]:
            ids, real = padded(corpus.train[i] for i in chosen)
            yield torch.from_numpy(ids), torch.from_numpy(real), sum(lengths[i] - 1 for i in chosen)
            left -= 1
        epoch += 1


def dev_loss(model: LanguageModel, settings: TrainSettings, corpus: Corpus, course: Course) -> float:
    """Return nats per token on the development sentences, without the scores of a formal language."""
    if course.diverged_at is not None:
        return nan
    rows = corpus.valid[: settings.dev_sentences]
    return evaluate(NextToken(model), rows, replace(corpus, language=None))["loss"]


def _mean(losses: list[tuple[float, int]]) -> float:
    total, tokens = (sum(column) for column in zip(*losses, strict=True)) if losses else (nan, 1)
    return total / tokens
