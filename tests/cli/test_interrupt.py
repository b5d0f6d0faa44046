"""Ctrl-C at any moment of a command, its imports included: one line, and no traceback."""

import signal
import subprocess
import sys
import time

import pytest

RUN = [
    "train",
    "dyck2",
    "--longest",
    "6",
    "--layers",
    "1",
    "--width",
    "8",
    "--heads",
    "2",
    "--feedforward",
    "8",
]


def interrupted(command: list[str], seconds: float) -> tuple[int, list[str]]:
    # Time counts from where Python and `import normgrowth`, which loads next to nothing, have begun.
    # A test run that was started in the background ignores the signal, and its children would inherit that.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys, runpy, normgrowth; print(flush=True); runpy.run_module('normgrowth', run_name='__main__')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        try:
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
        return process.returncode, said.splitlines()


@pytest.mark.parametrize("seconds", [0.02, 0.05, 0.1, 0.3, 0.6, 1.0, 1.5])
def test_an_interrupt_is_one_line(tmp_path, seconds):
    code, said = interrupted([*RUN, "--steps", "100000", "-o", str(tmp_path)], seconds)
    # Python ends itself by the signal where a library ran code of its own: shells call both 130.
    assert code in (130, -signal.SIGINT)
    assert len(said) == 1
    assert said[0].startswith("normgrowth: interrupted")


def test_an_ignored_interrupt_stays_ignored():
    """As in the background of a shell without job control."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import sys; sys.argv[1:] = ['--version']\n"
        "from normgrowth.__main__ import main; main()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
