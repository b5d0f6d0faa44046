"""The training of a language model as in the paper, from text to a series of checkpoints that every command can read.

The order of the sentences depends only on the seed and the epoch, and nothing else is random after initialization. So a
killed run resumes from its last state, and its final weights are bit-identical on the same machine with the same number
of threads. Under torchrun, each rank processes a part of each batch, and the loss is that of the whole batch.
"""

import time
from collections.abc import Callable
from math import isfinite
from typing import Any, TypedDict

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.errors import InputError, SchemaError
from normgrowth.lab.build import new_model, new_optimizer, total_steps
from normgrowth.lab.data.corpus import Corpus, describe, in_batches, padded
from normgrowth.lab.evaluate import NextToken, evaluate, levels
from normgrowth.lab.run import Run
from normgrowth.lab.run_files import STATE, TRACKER, RunFolder
from normgrowth.lab.settings import TrainSettings, every
from normgrowth.network.models.encoder_folder import load_weights
from normgrowth.records import Block, Records
from normgrowth.results import Provenance
from normgrowth.serialization.checksums import TABLE
from normgrowth.serialization.json_types import converted
from normgrowth.serialization.record_schema import conformed
from normgrowth.tracking.distributed import is_main, is_parallel, rank, shared, world_size
from normgrowth.tracking.tensor_sums import to_double
from normgrowth.tracking.tracked_parameters import watch
from normgrowth.tracking.tracker import NormTracker


class TrainingState(TypedDict):
    """The contents of state.pt; torch checks that weights and optimizer match the model."""

    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    step: int
    best: list[float] | None
    since: list[float]
    evaluations: bytes  # records


class Diverged(InputError):
    """The loss is NaN or infinite."""


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C or SIGTERM after the state was saved."""


# Steps done, total steps, loss and tokens of the step.
Progress = Callable[[int, int, dict[str, float]], None]


class TrainingLoop:
    """A run: its model, optimizer and data, and everything that is saved to resume it."""

    def __init__(
        self,
        settings: TrainSettings,
        corpus: Corpus,
        folder: RunFolder,
        device: torch.device,
        progress: Progress | None,
        save_seconds: float,
    ) -> None:
        self.settings, self.corpus, self.folder, self.progress = settings, corpus, folder, progress
        self.device = device
        self.model = new_model(settings, corpus).to(device)
        self.whole = NextToken(self.model)
        self.wrapped = DistributedDataParallel(self.whole) if is_parallel() else self.whole
        self.optimizer = new_optimizer(settings, self.model)
        self.lengths = [len(row) for row in corpus.train]
        self.per_epoch = -(-len(corpus.train) // settings.batch)
        self.total = total_steps(settings, corpus)
        self.selection = Selection(settings.include)
        self.counted = watch(self.model, self.selection).counted
        self.described = describe(corpus, settings.dev_sentences)
        self.rate = settings.rate(self.total)
        self.step = 0
        self.best: tuple[float, int] | None = None  # development loss, step
        self.rows: list[Records] = []  # of evaluations
        self.since = [0.0, 0.0]  # loss and tokens since the last evaluation
        self.save_seconds, self.saved = save_seconds, time.monotonic()
        self._load()

    def go(self, stopping: Callable[[], bool]) -> Run:
        with NormTracker(
            self.model,
            self.optimizer,
            every=every(self.settings.track),
            out=self.folder.path / TRACKER,
            include=self.settings.include,
            run=self.folder.name,
            resume_step=self.step,
        ) as tracker:
            if not self.rows:
                self._evaluate()
            while self.step < self.total:
                self._epoch(stopping)
        test = self._test()
        result = self._result([*self.rows, test, *(_few(tracker.trace.records) if is_main() else [])])
        if is_main():
            self.folder.write(result)
        return result

    def _epoch(self, stopping: Callable[[], bool]) -> None:
        """Train from the current step to the end of the epoch."""
        epoch, done = divmod(self.step, self.per_epoch)
        rng = np.random.default_rng([self.settings.seed, epoch])
        batches = in_batches(self.lengths, self.settings.batch, rng)
        for chosen in batches[done : done + self.total - self.step]:
            loss, tokens = self._update(chosen)
            stop, broken = self._together(stopping(), not isfinite(loss))
            if broken:
                raise Diverged(self._diverged(f"the loss is {loss} at step {self.step + 1}"))
            self.since[0] += loss * tokens
            self.since[1] += tokens
            if self.progress and is_main():
                self.progress(self.step, self.total, {"loss": loss, "tokens": tokens})
            ends = self.step % self.per_epoch == 0 or self.step == self.total
            if ends or self.settings.evaluates(self.step):
                self._evaluate()
            elif stop or time.monotonic() - self.saved > self.save_seconds:
                self._save()
            if stop and self.step < self.total:
                raise Interrupted

    def _update(self, chosen: np.ndarray) -> tuple[float, int]:
        """Do one step; return the loss per token of the whole batch before the step, and its number of tokens."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.step)
        tokens = sum(self.lengths[i] - 1 for i in chosen)
        own = chosen[rank() :: world_size()]
        # A rank without rows must still take part in the collective operations: it uses a row with weight 0.
        ids, real = padded(self.corpus.train[i] for i in (own if len(own) else chosen[:1]))
        summed = self.wrapped(*(torch.from_numpy(array).to(self.device) for array in (ids, real)))
        if not len(own):
            summed = summed * 0.0
        self.optimizer.zero_grad()
        (summed * (world_size() / tokens)).backward()  # DDP averages over ranks
        loss = to_double(summed.detach())
        if is_parallel():
            torch.distributed.all_reduce(loss)
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        if isfinite(loss.item()):
            self.optimizer.step()
            self.step += 1
        return loss.item() / tokens, tokens

    def _evaluate(self) -> None:
        corpus, settings = self.corpus, self.settings
        found = evaluate(self.whole, corpus.valid[: settings.dev_sentences], corpus)
        values = {("dev_loss" if name == "loss" else name): value for name, value in found.items()}
        if not isfinite(values["dev_loss"]):
            raise Diverged(
                self._diverged(f"the development loss is {values['dev_loss']} after step {self.step}")
            )
        if self.since[1]:
            values["train_loss"] = self.since[0] / self.since[1]
        values["epoch"] = self.step / self.per_epoch
        best = self.best is None or values["dev_loss"] < self.best[0]
        if best:
            self.best = (values["dev_loss"], self.step)
        if is_main():
            few = corpus.valid[: settings.saturation_sentences]
            self.rows.append(self._of_model(self.step, values))
            self.rows += [levels(self.model, few, self.folder.name, self.step)] if few else []
            self.folder.checkpoint(self.step, self.model, corpus.vocabulary.words, best=best)
        self.since = [0.0, 0.0]
        self._save()
        if is_main():
            self.folder.write(self._result(self.rows))

    def _of_model(self, step: int, values: dict[str, float]) -> Records:
        return Records.from_blocks(self.folder.name, [Block.of_model([step], values)])

    def _test(self) -> Records:
        """Evaluate the best checkpoint on the test part; the first rank sends its weights to the others."""
        assert self.best is not None
        model = new_model(self.settings, self.corpus).to(self.device)
        if is_main():
            load_weights(self.folder.best, model)
        if is_parallel():
            for tensor in model.state_dict().values():
                torch.distributed.broadcast(tensor, 0)
        found = evaluate(NextToken(model), self.corpus.test, self.corpus)
        return self._of_model(self.best[1], {f"test_{name}": value for name, value in found.items()})

    def _result(self, records: list[Records]) -> Run:
        return Run(
            records=Records.joined(records),
            settings=self.settings,
            corpus=self.described,
            steps=self.total,
            best_step=self.best[1] if self.best else None,
            parameters=sum(p.numel() for p in self.model.parameters()),
            selection=self.selection,
            counted=self.counted,
            threads=torch.get_num_threads(),
            ranks=world_size(),
            notes=tuple(self.corpus.notes),
            provenance=Provenance.now(),
        )

    # Saved state -----------------------------------------------------------------------------------------

    def _save(self) -> None:
        self.saved = time.monotonic()
        # Do not save NaN or infinite weights: the next step raises `Diverged`, and the last state is still finite.
        if not is_main() or not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            return
        self.folder.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "best": self.best,
                "since": self.since,
                "evaluations": TABLE.encode(Records.joined(self.rows).table),
            }
        )

    def _load(self) -> None:
        state = shared(self.folder.load() if is_main() else None)
        if state is None:
            return
        path, advice = self.folder.path / STATE, "remove it to start over"
        converted(state, TrainingState, path, advice=advice)
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            said = f"not a state of this run ({(str(error) or type(error).__name__).splitlines()[0]})"
            raise SchemaError(path, "", said, advice) from error
        self.step, self.since = state["step"], list(state["since"])
        self.best = tuple(state["best"]) if state["best"] else None
        self.rows = [Records(conformed(TABLE.decode(state["evaluations"]), path))]

    def _together(self, *flags: bool) -> tuple[bool, ...]:
        """Return each flag, true if it is true on any rank."""
        if not is_parallel():
            return flags
        told = torch.tensor(flags, dtype=torch.int32, device=self.device)
        torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX)
        return tuple(bool(flag) for flag in told)

    def _diverged(self, said: str) -> str:
        kept = f"; the best weights, of step {self.best[1]}, are in {self.folder.best}" if self.best else ""
        return (
            f"{self.folder.path}: {said}, so the run stops{kept}; "
            "a lower --lr, a --warmup or --clip 1 may help"
        )


def _few(records: Records) -> list[Records]:
    """Return the tracker's rows of the model, its parts and its layers; others stay in the tracker's folder."""
    kept = ("model", "part", "layer", "layer_matrices")
    return [part for level in kept if len(part := records.where(level=level))]
