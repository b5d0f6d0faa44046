"""The error for malformed files of any format, to which the caller adds the path."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normgrowth.errors import InputError


class Malformed(ValueError):
    """The content of a file is invalid. The message is the problem. file: which one, if the format has several."""

    def __init__(self, problem: str, file: str = "") -> None:
        super().__init__(problem)
        self.file = file


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raise `Malformed` errors as an InputError that names the file."""
    try:
        yield
    except Malformed as error:
        raise InputError(f"{path}: {error}") from error
