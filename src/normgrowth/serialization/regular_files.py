"""Read whole files that anybody may have put there: no waiting for a pipe, no device without end, no giant."""

import errno
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG

LARGEST_TEXT = 256 << 20  # bytes of JSON; as Python objects they take about ten times as much
LARGEST_CACHED = 4 << 30  # bytes of the sums and samples of a step
LARGEST_TABLE = 16 << 30
PARQUET_END = b"PAR1"


def read_regular(path: Path, most: int = LARGEST_TEXT, *, end: bytes = b"") -> bytes:
    """The content of a regular file of at most `most` bytes. Raises OSError for anything else.

    end: the last bytes of a valid file. A file without them is not read further; these bytes are returned.
    """
    stat = path.stat()
    if S_ISDIR(stat.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not S_ISREG(stat.st_mode):
        raise OSError(errno.EINVAL, "is a pipe, a socket or a device, not a file", str(path))
    if stat.st_size > most:
        raise OSError(errno.EFBIG, f"has {stat.st_size:,} bytes, more than {most:,}", str(path))
    with path.open("rb") as file:
        if end:
            file.seek(max(0, stat.st_size - len(end)))
            if (last := file.read(len(end))) != end:
                return last
            file.seek(0)
        return file.read(stat.st_size)
