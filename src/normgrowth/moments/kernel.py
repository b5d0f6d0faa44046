"""The compiled inner loop: float64 sums over raw weights, read in place.

Weights are passed as addresses in mapped files, so nothing is copied, and 20,000 small tensors take one call.
All arithmetic is float64: the conversion takes less time than the memory access (``benchmarks/moments.py``),
so a less exact kernel would not be faster.

The numpy dtype of the raw bits identifies the storage type: uint64 is float64, uint32 is float32, uint16 is
bfloat16 and int16 is float16 (numpy has no bfloat16, and the compiler has no float16 arithmetic on CPUs).
Other dtypes are decoded to float64 before they are passed to this kernel.
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

BLOCK = 2048  # values per pass for the largest magnitude, while the block is still in the L1 cache

# Columns of the result: three for b, then three for each reference r, with d = b - r.
SQUARE, LARGEST, NONFINITE = 0, 1, 2
OWN_COLUMNS = 3
REF_SQUARE, REF_DOT, REF_DELTA = 0, 1, 2
REF_COLUMNS = 3

# Allows the compiler to reorder sums, which enables vectorization; NaN and infinity keep their semantics.
_FAST = {"reassoc", "contract", "nsz"}


@intrinsic
def _at(typingctx, address, index, kind):
    """Value `index` of the array at an address, which need not be aligned: files may store values at any offset."""
    element = kind.dtype

    def codegen(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], context.get_value_type(types.CPointer(element)))
        loaded = builder.load(builder.gep(pointer, [arguments[1]]))
        loaded.align = 1
        return loaded

    return element(types.intp, types.intp, kind), codegen


@intrinsic
def _float_of_bits(typingctx, bits):
    floating = types.float64 if bits == types.uint64 else types.float32

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(floating))

    return floating(bits), codegen


def _value(bits):
    """The number that raw bits represent. Only works in compiled code, by the overload below."""
    raise RuntimeError("compiled code only")


@overload(_value, inline="always")
def _value_overload(bits):
    if bits == types.uint16:  # bfloat16 is the upper half of a float32
        return lambda bits: np.float64(_float_of_bits(np.uint32(np.uint32(bits) << np.uint32(16))))
    if bits == types.int16:  # float16: shift the fields, then correct the exponent bias by a multiplication
        return lambda bits: np.float64(_float_of_bits(_half_bits(bits))) * 2.0**112
    return lambda bits: np.float64(_float_of_bits(bits))


@njit(inline="always")
def _half_bits(half):
    wide = np.uint32(half)
    sign = np.uint32(np.uint32(wide & np.uint32(0x8000)) << np.uint32(16))
    magnitude = np.uint32(np.uint32(wide & np.uint32(0x7FFF)) << np.uint32(13))
    # An exponent of all ones means infinity or NaN in both formats.
    special = np.uint32(np.uint32(0x7F800000) * np.uint32(magnitude >= np.uint32(0x0F800000)))
    return np.uint32(sign | magnitude | special)


def _magnitude(bits):
    """The bits without the sign, which sort like the magnitudes. Only works in compiled code."""
    raise RuntimeError("compiled code only")


@overload(_magnitude, inline="always")
def _magnitude_overload(bits):
    if bits == types.uint64:
        return lambda bits: np.uint64(bits & np.uint64(0x7FFFFFFFFFFFFFFF))
    if bits == types.uint32:
        return lambda bits: np.uint32(bits & np.uint32(0x7FFFFFFF))
    return lambda bits: np.uint16(np.uint16(bits) & np.uint16(0x7FFF))


@njit(fastmath=_FAST, error_model="numpy", inline="always")
def _largest(address, kind, start, stop, largest):
    for j in range(start, stop):
        magnitude = _magnitude(_at(address, j, kind))
        largest = magnitude if magnitude > largest else largest
    return largest


@njit(error_model="numpy")
def _finite_extent(address, kind, n):
    """Largest finite magnitude and number of non-finite values; slow, but rarely needed."""
    largest, bad = 0.0, 0.0
    for j in range(n):
        magnitude = abs(_value(_at(address, j, kind)))
        if magnitude < np.inf:
            largest = max(largest, magnitude)
        else:
            bad += 1.0
    return largest, bad


def _compiled(function):
    """Compile on first use, and cache the machine code on disk if possible."""
    options = {"nogil": True, "fastmath": _FAST, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package folder nor the home folder is writable
        return njit(**options)(function)


@_compiled
def sums(kind, addresses, counts, out):
    """Fill ``out[i]`` with the sums of item i.

    ``kind`` is an empty array whose dtype identifies the storage type. ``addresses[i]`` has the addresses of b and
    of up to two references, each with ``counts[i]`` values in the same order.
    """
    references = addresses.shape[1] - 1
    for i in range(len(counts)):
        n = counts[i]
        b = addresses[i, 0]
        largest = _magnitude(kind.dtype.type(0))
        bb = 0.0
        if references == 0:
            for start in range(0, n, BLOCK):
                stop = min(start + BLOCK, n)
                for j in range(start, stop):
                    x = _value(_at(b, j, kind))
                    bb += x * x
                largest = _largest(b, kind, start, stop, largest)
        elif references == 1:
            r = addresses[i, 1]
            rr, rd, dd = 0.0, 0.0, 0.0
            for start in range(0, n, BLOCK):
                stop = min(start + BLOCK, n)
                for j in range(start, stop):
                    x, y = _value(_at(b, j, kind)), _value(_at(r, j, kind))
                    d = x - y
                    bb += x * x
                    rr += y * y
                    rd += y * d
                    dd += d * d
                largest = _largest(b, kind, start, stop, largest)
            out[i, OWN_COLUMNS + REF_SQUARE] = rr
            out[i, OWN_COLUMNS + REF_DOT] = rd
            out[i, OWN_COLUMNS + REF_DELTA] = dd
        else:
            r = addresses[i, 1]
            s = addresses[i, 2]
            rr, rd, dd = 0.0, 0.0, 0.0
            ss, se, ee = 0.0, 0.0, 0.0
            for start in range(0, n, BLOCK):
                stop = min(start + BLOCK, n)
                for j in range(start, stop):
                    x, y, z = _value(_at(b, j, kind)), _value(_at(r, j, kind)), _value(_at(s, j, kind))
                    d, e = x - y, x - z
                    bb += x * x
                    rr += y * y
                    rd += y * d
                    dd += d * d
                    ss += z * z
                    se += z * e
                    ee += e * e
                largest = _largest(b, kind, start, stop, largest)
            out[i, OWN_COLUMNS + REF_SQUARE] = rr
            out[i, OWN_COLUMNS + REF_DOT] = rd
            out[i, OWN_COLUMNS + REF_DELTA] = dd
            out[i, OWN_COLUMNS + REF_COLUMNS + REF_SQUARE] = ss
            out[i, OWN_COLUMNS + REF_COLUMNS + REF_DOT] = se
            out[i, OWN_COLUMNS + REF_COLUMNS + REF_DELTA] = ee
        out[i, SQUARE] = bb
        top = _value(kind.dtype.type(largest))
        if top < np.inf:
            out[i, LARGEST] = top
            out[i, NONFINITE] = 0.0
        else:
            out[i, LARGEST], out[i, NONFINITE] = _finite_extent(b, kind, n)
