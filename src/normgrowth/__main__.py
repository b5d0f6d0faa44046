"""The entry point of the command line, also run by ``python -m normgrowth``.

It handles Ctrl-C before it imports anything large: an interrupted import would print a traceback.
"""

import os
import signal
import sys

TYPE_CHECKING = False  # as in typing, whose import takes long enough for a Ctrl-C to fall into
if TYPE_CHECKING:
    from types import FrameType


def main() -> int:
    interrupted = False

    def interrupt(_: int, frame: "FrameType | None") -> None:
        nonlocal interrupted
        interrupted = True
        while frame is not None:
            # An exception inside a compiled module that is being imported can abort the process.
            if "importlib._bootstrap" in frame.f_code.co_filename:
                print("normgrowth: interrupted", file=sys.stderr, flush=True)
                os._exit(130)
            frame = frame.f_back
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        from normgrowth.cli.main import main as command

        return command()
    except Exception:
        if not interrupted:  # an interrupted import can raise any exception
            raise
    except KeyboardInterrupt:
        pass
    print("normgrowth: interrupted", file=sys.stderr, flush=True)
    return 130


if __name__ == "__main__":
    sys.exit(main())
