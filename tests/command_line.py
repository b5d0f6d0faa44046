"""Run a command of normgrowth inside the process of the tests."""

from normgrowth.cli.main import main


def run(capsys, *arguments):
    """Exit code, standard output and standard error."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:  # argparse exits by itself
        code = stop.code
    return code, *capsys.readouterr()
