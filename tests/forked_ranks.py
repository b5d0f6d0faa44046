"""Fork one process per rank. The parent has loaded torch, so that a launch costs little.

Ranks never destroy their process group: its threads can abort the process. Each rank waits until all have finished, so
that none loses a peer, and then ends without teardown.
"""

import faulthandler
import os
import sys
import traceback
from collections.abc import Callable


def fork_ranks(ranks: int, run_rank: Callable[[int], None], seconds: float) -> bool:
    """Whether every rank ended without an error; one that takes longer than this prints its stack and ends."""
    children = []
    finished, finish = os.pipe()  # at its end when every rank has finished or died
    ended, end = os.pipe()  # at its end when the ranks may exit
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os.close(end)
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
                os.close(finish)
                if status == 0:
                    os.read(ended, 1)
                os._exit(status)
        children.append(child)
    os.close(finish)
    os.read(finished, 1)
    for descriptor in (finished, ended, end):
        os.close(descriptor)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return not any(statuses)
