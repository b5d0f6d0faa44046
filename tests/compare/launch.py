"""Train runs on real ranks (gloo): `python -m compare.launch FOLDER < JSON`, {name: settings}; each writes FOLDER/name.

One process loads torch and forks the ranks, so that a launch costs little; the runs of one number of ranks share them.
"""

import datetime
import faulthandler
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from compare.training import Settings, train


def run_rank(rank: int, ranks: int, runs: dict[str, Settings], folder: Path) -> None:
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
        train(settings, folder / name)
        if ranks > 1:
            dist.barrier()
    if ranks > 1:
        dist.destroy_process_group()


def launch(ranks: int, runs: dict[str, Settings], folder: Path) -> bool:
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                faulthandler.dump_traceback_later(240, exit=True)
                run_rank(rank, ranks, runs, folder)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return not any(statuses)


def main(folder: Path) -> None:
    runs = {name: Settings(**given) for name, given in json.load(sys.stdin).items()}
    done = True
    for ranks in sorted({settings.ranks for settings in runs.values()}):
        mine = {name: settings for name, settings in runs.items() if settings.ranks == ranks}
        done = launch(ranks, mine, folder) and done
    sys.exit(0 if done else 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
