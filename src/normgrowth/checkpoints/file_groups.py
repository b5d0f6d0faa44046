"""Which names are those of weights: one list for folders, web servers, buckets and the hub."""

import re

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".chkpt", ".torch")  # told by its name alone
# On this machine a file is told by its content, so that more names may be looked into.
WEIGHT_SUFFIXES = {".safetensors", ".index", *PICKLED, ".tar", ".model", ".pkl", ".weights", ""}
# What trainers save beside the weights, as large as they are or larger.
_NOT_WEIGHTS = re.compile(
    r"^(scheduler|lr_sched|rng_state|random_states|training_args|scaler|sampler|dataloader|train\.pt|rank_?\d"
    r"|zero_pp_rank)|(^|[-_.])optim(s|i[sz]ers?)?([-_.\d]|$)",
    re.IGNORECASE,
)


def is_trainer_state(name: str) -> bool:
    """Whether a file is called as what belongs to the optimizer, the schedule, the data or one process."""
    return _NOT_WEIGHTS.search(name) is not None
