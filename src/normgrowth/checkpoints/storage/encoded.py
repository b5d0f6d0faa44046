"""Values that a file stores encoded. Each tensor is decoded as a whole on access."""

import zlib
from typing import Literal, NamedTuple

import numpy as np


class Encoded(NamedTuple):
    """A tensor that is decoded from bytes of a file.

    codec: "latin-1" is UTF-8 text of the characters 0 to 255, as pickle protocol 2 writes bytes; "deflate" is an
    entry of a compressed archive.
    """

    file: str  # relative to the checkpoint's root; "" if the root is the file
    offset: int
    numel: int
    nbytes: int  # stored
    codec: Literal["latin-1", "deflate"]
    header: int = 0  # decoded bytes before the values

    def decoded(self, stored: np.ndarray, bits: np.dtype) -> np.ndarray | None:
        """The raw bits, flat; None if they cannot be decoded or do not match the index."""
        wanted = self.header + self.numel * bits.itemsize
        try:
            if self.codec == "latin-1":
                raw = stored.tobytes().decode("utf-8").encode("latin-1")
            else:
                raw = zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored.tobytes(), wanted + 1)
        except (UnicodeError, zlib.error):
            return None
        return np.frombuffer(raw, bits, offset=self.header) if len(raw) == wanted else None


class Inline(NamedTuple):
    """A tensor with so few values that the pickle contains them directly."""

    file: str
    offset: int  # a unique number, so that two tensors with equal values are not considered tied
    numel: int
    raw: bytes | str  # str: the characters 0 to 255

    def decoded(self, bits: np.dtype) -> np.ndarray:
        return np.frombuffer(self.raw.encode("latin-1") if isinstance(self.raw, str) else self.raw, bits)
