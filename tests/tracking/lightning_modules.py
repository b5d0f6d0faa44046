"""What `callbacks_worker.py` gives to Lightning, in a module of its own, so that it pickles."""

from pathlib import Path

import lightning.pytorch as pl
import torch
from callbacks_worker import has_records, network, noted, write_down

from normgrowth.tracking.integrations.lightning import NormCallback


class Language(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, batch):
        return self.network(input_ids=batch[0], labels=batch[0]).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.1)


class Listener(pl.Callback):
    def __init__(self, folder: Path):
        self.folder = folder

    def on_train_start(self, trainer, pl_module):
        self.history = noted(pl_module, trainer.optimizers[0])

    def on_train_end(self, trainer, pl_module):
        callback = next(one for one in trainer.callbacks if isinstance(one, NormCallback))
        found = {"rank": trainer.global_rank, "wrapped": type(trainer.strategy.model).__name__}
        found |= {"history": self.history, "contains records": has_records(callback.trackers[0])}
        write_down(self.folder, found)
