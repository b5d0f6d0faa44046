"""Values that a file stores encoded: each tensor is decoded whole, when it is asked for."""

import zlib
from typing import Literal, NamedTuple

import numpy as np


class Encoded(NamedTuple):
    """A tensor that is decoded from bytes of a file.

    "latin-1": bytes as UTF-8 text of the characters 0 to 255, as protocol 2 of pickle writes them. "deflate": an entry
    of a compressed archive.
    """

    file: str  # below the checkpoint's root; "" where the root is the file
    offset: int
    numel: int
    nbytes: int  # stored
    codec: Literal["latin-1", "deflate"]
    header: int = 0  # bytes in front of the values, once decoded

    def decoded(self, stored: np.ndarray, bits: np.dtype) -> np.ndarray | None:
        """Its raw bits, flat; None if they are not what the index says."""
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
    """A tensor of so few values that its index holds them."""

    file: str
    offset: int  # a number of its own: equal values do not make two tensors one
    numel: int
    raw: bytes | str  # text: the characters 0 to 255

    def decoded(self, bits: np.dtype) -> np.ndarray:
        return np.frombuffer(self.raw.encode("latin-1") if isinstance(self.raw, str) else self.raw, bits)
