"""Profiles of a GPU without tables: another's by the data sheets, and few multipliers kept busy."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.kernel_tables import read_kernel_tables
from kvplan.catalog.devices.measured_profile import MeasuredProfile
from kvplan.catalog.devices.scaled import scaled


def _profile(engine: str, dtype: str) -> MeasuredProfile:
    return next(
        each
        for each in read_kernel_tables()
        if (each.device_name, each.engine, each.dtype) == ("h100-sxm", engine, dtype)
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8", "fp8-block"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_few_multipliers_reach_most_of_their_format(engine: str, dtype: str) -> None:
    h20 = find_gpu("h20")
    found = scaled(_profile(engine, dtype), h20)
    most = 0.85 * h20.flops(dtype.removesuffix("-block"))
    assert found.experts is not None
    assert found.experts["flops"] >= 0.999 * most
    assert found.coefficients["flops"] >= 0.999 * most
    assert found.coefficients["attention_flops"] == pytest.approx(0.85 * h20.flops("bfloat16"))


def test_as_many_multipliers_for_each_byte_are_scaled_by_the_data_sheets() -> None:
    profile, gpu = _profile("vllm", "bfloat16"), find_gpu("h100-pcie")
    found, of = scaled(profile, gpu), find_gpu("h100-sxm")
    memory = gpu.memory_bandwidth_bytes_per_second / of.memory_bandwidth_bytes_per_second
    wide = gpu.flops("bfloat16") / of.flops("bfloat16")
    assert profile.experts is not None and found.experts is not None
    for name, factor in (("bandwidth", memory), ("kv_bandwidth", memory), ("flops", wide), ("attention_flops", wide)):
        assert found.coefficients[name] == pytest.approx(factor * profile.coefficients[name])
    assert found.experts["flops"] == pytest.approx(wide * profile.experts["flops"])
    assert found.experts["bandwidth"] == pytest.approx(memory * profile.experts["bandwidth"])
