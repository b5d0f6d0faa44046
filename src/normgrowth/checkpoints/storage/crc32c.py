"""CRC32C, the checksum of TensorFlow's files: of bytes, and of bytes that are read in parts."""

from functools import lru_cache

import numpy as np

_POLYNOMIAL = 0x82F63B78  # bits reversed: the highest bit is x⁰
_ONE = 1 << 31
_MASK = 0xA282EAD8


def crc32c(content: bytes | np.ndarray) -> int:
    """The checksum of bytes, or of the bytes of an array."""
    import google_crc32c

    raw = content if isinstance(content, bytes) else np.ascontiguousarray(content).view(np.uint8)
    return google_crc32c.value(raw)  # pyright: ignore[reportArgumentType]  # takes arrays without a copy


def unmasked(stored: int) -> int:
    """The checksum that a file stores: rotated by 15 bits and shifted, so that files with checksums have others."""
    rotated = (stored - _MASK) & 0xFFFFFFFF
    return (rotated << 15 | rotated >> 17) & 0xFFFFFFFF


def joined(first: int, second: int, size: int) -> int:
    """The checksum of two stretches of bytes that follow each other, from those of each. size: of the second."""
    return _product(first, _power(size)) ^ second


@lru_cache(maxsize=1024)  # parts of a file mostly have a few sizes
def _power(size: int) -> int:
    """x to the power of 8 · size, modulo the polynomial: what appending so many zero bytes multiplies by."""
    result, square = _ONE, _ONE >> 8  # x⁸
    while size:
        if size & 1:
            result = _product(result, square)
        square = _product(square, square)
        size >>= 1
    return result


def _product(a: int, b: int) -> int:
    result = 0
    while a:
        if a & _ONE:
            result ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return result
