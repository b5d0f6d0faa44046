"""Train runs on real ranks (gloo): `python -m compare.launch MODULE FOLDER < JSON`, {name: settings}.

MODULE has `Settings` and `train`; each run writes FOLDER/name.

One process loads torch and forks the ranks, so that a launch costs little; the runs of one number of ranks share them.
"""

import datetime
import json
import sys
import warnings
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked_ranks import fork_ranks


def run_rank(rank: int, ranks: int, runs: dict[str, Any], module: Any, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store-{ranks}",
            rank=rank,
            world_size=ranks,
            timeout=datetime.timedelta(seconds=60),
        )
    for name, settings in runs.items():
        module.train(settings, folder / name)
        if ranks > 1:
            dist.barrier()


def main(module: Any, folder: Path) -> None:
    runs = {name: module.Settings(**given) for name, given in json.load(sys.stdin).items()}
    done = True
    for ranks in sorted({settings.ranks for settings in runs.values()}):
        mine = {name: settings for name, settings in runs.items() if settings.ranks == ranks}
        done = (
            fork_ranks(ranks, partial(run_rank, ranks=ranks, runs=mine, module=module, folder=folder), 240)
            and done
        )
    sys.exit(0 if done else 1)


if __name__ == "__main__":
    main(import_module(sys.argv[1]), Path(sys.argv[2]))
