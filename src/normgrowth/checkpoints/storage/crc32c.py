"""CRC32C, the checksum of TensorFlow's files, also for bytes that are read in parts."""

from functools import lru_cache

import numpy as np

_POLYNOMIAL = 0x82F63B78  # with reversed bits: the highest bit is x⁰
_ONE = 1 << 31
_MASK = 0xA282EAD8


def crc32c(content: bytes | np.ndarray) -> int:
    """The checksum of bytes, or of the bytes of an array."""
    import google_crc32c

    raw = content if isinstance(content, bytes) else np.ascontiguousarray(content).view(np.uint8)
    return google_crc32c.value(raw)  # pyright: ignore[reportArgumentType]  # takes arrays without a copy


def unmasked(stored: int) -> int:
    """The checksum from its stored form. TensorFlow rotates it by 15 bits and adds a constant, as LevelDB does."""
    rotated = (stored - _MASK) & 0xFFFFFFFF
    return (rotated << 15 | rotated >> 17) & 0xFFFFFFFF


def joined_checksum(first: int, second: int, size: int) -> int:
    """The checksum of two consecutive byte ranges, from the checksum of each. size: number of bytes in the second."""
    return _product(first, _power(size)) ^ second


@lru_cache(maxsize=1024)  # cached, since the parts of a file have only a few different sizes
def _power(size: int) -> int:
    """x to the power of 8 · size modulo the polynomial: the factor for appending that many zero bytes."""
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
