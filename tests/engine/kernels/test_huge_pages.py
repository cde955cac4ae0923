"""Memory for weights: beside each other, apart from each other, and free when nobody holds it."""

from __future__ import annotations

import ctypes
import gc
import mmap
import weakref

import pytest
import torch

from kvplan_engine.kernels.cpu import huge_pages
from kvplan_engine.kernels.cpu.huge_pages import empty_for_weights

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="huge pages are advised on Linux alone")


def _newest() -> weakref.ref[ctypes.Array[ctypes.c_uint8]]:
    newest = huge_pages._REGIONS._newest
    assert newest is not None
    return newest


def test_has_the_shape_and_the_type_asked_for() -> None:
    weight = empty_for_weights((3, 5, 7), torch.bfloat16)
    assert weight.shape == (3, 5, 7) and weight.dtype is torch.bfloat16 and weight.is_contiguous()
    assert empty_for_weights((0, 4), torch.float32).shape == (0, 4)


def test_small_weights_share_huge_pages_and_no_byte() -> None:
    weights = [empty_for_weights((count,), torch.uint8) for count in (1, 4096, 4097, 100_000)]
    for value, weight in enumerate(weights):
        weight.fill_(value)
    assert all((weight == value).all() for value, weight in enumerate(weights))
    assert weights[-1].data_ptr() - weights[0].data_ptr() == 4 * 4096


def test_what_is_left_of_a_large_weights_region_is_used() -> None:
    large = empty_for_weights((huge_pages._REGION_BYTES + 1,), torch.uint8)
    large[-1] = 7
    assert large[-1] == 7
    behind = empty_for_weights((8,), torch.uint8)
    assert large.data_ptr() < behind.data_ptr() <= large.data_ptr() + large.nbytes + 2 * huge_pages._HUGE_BYTES


def test_memory_is_free_when_nobody_holds_it() -> None:
    first = empty_for_weights((huge_pages._REGION_BYTES,), torch.uint8)  # nothing of an earlier test lies beside it
    region = _newest()
    view = first[10:20]
    del first
    gc.collect()
    assert region() is not None
    del view
    gc.collect()
    assert region() is None
    assert empty_for_weights((8,), torch.uint8).shape == (8,)
