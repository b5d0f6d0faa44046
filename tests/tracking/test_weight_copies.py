"""Copies of weights in memory that is used again: their values, and what the system is told about the memory."""

import mmap
import re
import resource
from pathlib import Path

import pytest
import torch

from normgrowth.tracking.measuring.weight_copies import WeightCopies

MB = 2**20


def lazily_free() -> int:
    """The bytes of this process that the system may take back."""
    return 1024 * int(re.findall(r"LazyFree:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text())[0])


def test_copies_have_the_values_and_dtypes_and_keep_them():
    tensors = [
        torch.randn(5),
        torch.randn(0),
        torch.randn(33).bfloat16(),
        torch.arange(7),
        torch.randn(3, dtype=torch.float64),
    ]
    wanted = [tensor.clone() for tensor in tensors]
    copies = WeightCopies()
    found = copies.copy(tensors)
    for tensor in tensors:
        tensor.zero_()
    for one, before in zip(found, wanted, strict=True):
        assert one.dtype == before.dtype
        assert torch.equal(one, before)


def test_memory_is_used_again_and_grows_if_needed():
    copies = WeightCopies()
    small, large = torch.randn(1000), torch.randn(3000)
    (first,) = copies.copy([large])
    copies.release()
    address = first.data_ptr()
    (second,) = copies.copy([small])
    assert second.data_ptr() == address
    assert torch.equal(second, small)
    third, fourth = copies.copy([large, small])
    assert torch.equal(third, large)
    assert torch.equal(fourth, small)


def test_memory_on_other_devices_is_not_taken():
    copies = WeightCopies()
    (found,) = copies.copy([torch.empty(10**12, device="meta")])
    assert found.device.type == "meta"


def test_memory_that_does_not_exist_is_a_memory_error():
    with pytest.raises(MemoryError):
        WeightCopies()._take(2**60)


@pytest.mark.skipif(not hasattr(mmap, "MADV_FREE"), reason="the system has no MADV_FREE")
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc")
def test_between_steps_the_system_may_take_the_memory_back():
    copies, weights = WeightCopies(), torch.randn(8 * MB)  # 32 MB
    copies.copy([weights])
    before = lazily_free()
    copies.release()
    assert lazily_free() - before >= 31 * MB
    copies.copy([weights])
    assert lazily_free() - before <= MB


def test_the_second_copy_touches_no_new_page():
    copies, weights = WeightCopies(), torch.randn(8 * MB)  # 32 MB: 8,192 pages of 4 kB, or 16 of 2 MB
    copies.copy([weights])
    copies.release()
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    copies.copy([weights])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start < 16
