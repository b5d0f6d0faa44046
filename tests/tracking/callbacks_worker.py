"""Two real ranks for the callbacks: `callbacks_worker.py hf|lightning FOLDER [START_METHOD]`.

What each rank saw is written to FOLDER as JSON.
Each rank notes the weights and gradients of every step by itself, and from these the numbers in float64 that records
must have: they come from given weights, so that nothing depends on how well training repeats.
"""

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn

from normgrowth.errors import InputError

STEPS, ACCUMULATED = 6, 2


def layers_of(model: nn.Module) -> dict[str, list[torch.Tensor]]:
    """What a row of the records is about, from where parameters are in GPT-2."""
    named = list(model.named_parameters())
    blocks = {f"layer.{i}": [p for n, p in named if f".h.{i}." in n] for i in range(2)}
    return {"model": [p for _, p in named], **blocks}


def noted(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, dict[str, float]]]:
    """Filled at each step: norm, step and gradient of the model and of its layers, the obvious way."""
    history: list[dict[str, dict[str, float]]] = []
    kept: dict[str, torch.Tensor] = {}

    def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([t.detach().double().flatten() for t in tensors])

    def before(*_: object) -> None:
        kept.update({name: flat(tensors) for name, tensors in layers_of(model).items()})

    def after(*_: object) -> None:
        history.append(
            {
                name: {
                    "norm": flat(tensors).norm().item(),
                    "step_size": (flat(tensors) - kept[name]).norm().item(),
                    "gradient_norm": flat([p.grad for p in tensors if p.grad is not None]).norm().item(),
                }
                for name, tensors in layers_of(model).items()
            }
        )

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return history


def network() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2, **ends)
    return GPT2LMHeadModel(config)


def tokens() -> torch.Tensor:
    return torch.randint(32, (64, 8), generator=torch.Generator().manual_seed(1))


def has_records(tracker) -> bool:
    try:
        return len(tracker.trace.records) > 0
    except InputError:
        return False


def write_down(folder: Path, found: dict) -> None:
    """What a rank saw."""
    (folder / f"rank-{found['rank']}.json").write_text(json.dumps(found))


def of_transformers(folder: Path) -> dict:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from normgrowth.tracking.integrations.transformers import NormCallback

    settings = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=ACCUMULATED,
        learning_rate=3e-3,
        logging_steps=2,  # where the ranks meet to add their losses
        save_strategy="no",
        report_to=["tensorboard"],
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo",
        ddp_timeout=60,
    )
    trainer = Trainer(
        model=network(), args=settings, train_dataset=[{"input_ids": t, "labels": t} for t in tokens()]
    )
    logged: list[dict] = []
    history: list = []

    class Listener(TrainerCallback):
        def on_train_begin(self, args, state, control, **parts):
            nonlocal history
            history = noted(parts["model"], parts["optimizer"].optimizer)

        def on_log(self, args, state, control, logs=None, **parts):
            logged.append({"step": state.global_step, **{k: v for k, v in logs.items() if k != "epoch"}})

    callback = NormCallback(every=2, out=str(folder / "norms"), include="all").log_to(trainer)
    trainer.add_callback(callback)
    trainer.add_callback(Listener())
    trainer.train()
    kind = type(trainer.model_wrapped).__name__
    return {"rank": trainer.args.process_index, "wrapped": kind, "logged": logged, "history": history} | {
        "contains records": has_records(callback.tracker)
    }


def of_lightning(folder: Path, start_method: str = "popen") -> None:
    """Each rank writes for itself: spawned ones are gone when `fit` returns."""
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.strategies import DDPStrategy
    from lightning_modules import Language, Listener
    from torch.utils.data import DataLoader, TensorDataset

    from normgrowth.tracking.integrations.lightning import NormCallback

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(
            process_group_backend="gloo", timeout=timedelta(seconds=60), start_method=start_method
        ),
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATED,
        logger=CSVLogger(folder, name="logs", version=0),
        callbacks=[NormCallback(every=2, out=str(folder / "norms"), include="all"), Listener(folder)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Language(), DataLoader(TensorDataset(tokens()), batch_size=2))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    place = Path(sys.argv[2])
    if sys.argv[1] == "hf":
        write_down(place, of_transformers(place))
    else:
        of_lightning(place, *sys.argv[3:])
    if torch.distributed.is_initialized():  # threads of a process group can abort the process as it ends
        torch.distributed.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
