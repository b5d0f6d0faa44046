"""Build the device, corpus, model and optimizer of a run from its settings."""

from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from normgrowth.errors import InputError
from normgrowth.lab.data.corpus import Corpus, load_corpus
from normgrowth.lab.settings import TrainSettings
from normgrowth.network.models.encoders import LanguageModel
from normgrowth.tracking.distributed import is_parallel, rank


def device_of(name: str | None) -> torch.device:
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name}: {str(error).splitlines()[0]}") from error
    local = torch.device("cuda", rank() % max(1, torch.cuda.device_count()))
    return local if is_parallel() and name == "cuda" else device


def corpus_of(settings: TrainSettings, data: str | Path | None) -> Corpus:
    return load_corpus(
        settings.corpus,
        data,
        positions=settings.positions,
        min_count=settings.min_count,
        longest=settings.longest,
        seed=settings.seed,
    )


def total_steps(settings: TrainSettings, corpus: Corpus) -> int:
    """Return the number of steps of the whole run."""
    return min(settings.steps or 2**62, settings.epochs * -(-len(corpus.train) // settings.batch))


def new_model(settings: TrainSettings, corpus: Corpus) -> LanguageModel:
    """Return a new model with PyTorch's initialization from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        config = settings.encoder(len(corpus.vocabulary), corpus.positions)
        return LanguageModel(config, tied=settings.tied)


def new_optimizer(settings: TrainSettings, model: nn.Module) -> Optimizer:
    kinds = {
        "adamw": lambda p: torch.optim.AdamW(p, settings.lr, weight_decay=settings.decay, fused=True),
        "adam": lambda p: torch.optim.Adam(p, settings.lr, weight_decay=settings.decay, fused=True),
        "sgd": lambda p: torch.optim.SGD(
            p, settings.lr, settings.momentum, weight_decay=settings.decay, fused=True
        ),
        "adafactor": lambda p: torch.optim.Adafactor(p, settings.lr, weight_decay=settings.decay),
    }
    return kinds[settings.optimizer](model.parameters())
