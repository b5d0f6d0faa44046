"""The entry point of the command line, also run by ``python -m normgrowth``.

It handles Ctrl-C before it imports anything large: an interrupted import would print a traceback.
"""

import signal
import sys


def main() -> int:
    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    # A parent process may have set the signal to be ignored.
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
