"""The entry point of the command line; ``python -m normgrowth`` runs it, too.

It imports nothing large before it is ready for Ctrl-C, which else prints a traceback of what is being imported.
"""

import signal
import sys


def main() -> int:
    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is to be ignored
        signal.signal(signal.SIGINT, interrupt)
    try:
        from normgrowth.cli.main import main as command

        return command()
    except Exception:
        if not interrupted:  # a library that is interrupted while it is imported may raise anything
            raise
    except KeyboardInterrupt:
        pass
    print("normgrowth: interrupted", file=sys.stderr, flush=True)
    return 130


if __name__ == "__main__":
    sys.exit(main())
