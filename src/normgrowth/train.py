"""Train: train a language model as in the paper, and measure it during training."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from pathlib import Path

    from normgrowth.lab.data.corpus import Corpus
    from normgrowth.lab.run import Run
    from normgrowth.lab.settings import TrainSettings
    from normgrowth.lab.training_loop import Progress


def train(
    settings: "TrainSettings",
    out: "str | Path",
    *,
    data: "str | Path | None" = None,
    progress: "Progress | None" = None,
    save_seconds: float = 60.0,
    corpus: "Corpus | None" = None,
    device: str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
) -> "Run":
    """Train a model, or resume the run in the folder; return its evaluations and the measurements of its tracker.

    out: output folder; call it again with the same settings to resume.
    data: folder that contains `penn` and `wikitext-2`. corpus: use this corpus instead of the one in the settings.
    progress: called after every step. save_seconds: time between saved states.
    device: [default: a GPU if available]. threads: number of PyTorch threads [default: chosen by PyTorch].
    overwrite: remove another result in the folder.

    >>> run = ng.train(ng.preset("tiny", "dyck1", steps=4), "runs/dyck")
    >>> loss = run.evaluations[-1].scores["dev_loss"]
    >>> figure = run.plot()
    """
    import torch

    from normgrowth.errors import InputError
    from normgrowth.lab.build import corpus_of, device_of, total_steps
    from normgrowth.lab.interrupt import heard_between_steps
    from normgrowth.lab.run_files import open_run
    from normgrowth.lab.training_loop import TrainingLoop
    from normgrowth.tracking.distributed import world_size

    if threads is not None:
        if threads < 1:
            raise InputError(f"threads must be >= 1, got {threads}")
        torch.set_num_threads(threads)
    corpus = corpus or corpus_of(settings, data)
    settings.rate(total_steps(settings, corpus))  # raises errors of the schedule before the folder is created
    facts = {"fingerprint": corpus.fingerprint, "ranks": world_size()}
    with (
        open_run(out, settings, facts, overwrite=overwrite) as folder,
        heard_between_steps() as stopping,
    ):
        return TrainingLoop(settings, corpus, folder, device_of(device), progress, save_seconds).go(stopping)
