"""Fork one process per rank. The parent has loaded torch, so that a launch costs little."""

import faulthandler
import os
import sys
import traceback
from collections.abc import Callable


def fork_ranks(ranks: int, run_rank: Callable[[int], None], seconds: float) -> bool:
    """Whether every rank ended without an error; one that takes longer than this prints its stack and ends."""
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                faulthandler.dump_traceback_later(seconds, exit=True)
                run_rank(rank)
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
