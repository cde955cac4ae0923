"""GPU profiles: found by exact alias only, with the driver's totals, sources for every number and sane figures."""

from __future__ import annotations

import pytest

from kvplan.catalog.gpus import DEFAULT_GPUS, find_gpu, load_gpus
from kvplan.errors import UsageError
from kvplan.units import GIB

# fmt: off
REQUIRED = (
    "v100", "t4", "a10g", "l4", "l40s", "l40", "a30", "a40", "a6000", "a5000", "a100-40", "a100-80", "a100-pcie",
    "h100", "h100-pcie", "h100-nvl", "h200", "h20", "b200", "gb10", "gh200", "3090", "4090", "5090", "4060",
    "4080", "rtx-pro-6000", "mi300x", "cpu",
)
# fmt: on


@pytest.mark.parametrize("name", REQUIRED)
def test_required_gpus_are_there(name: str) -> None:
    assert find_gpu(name).memory_bytes > GIB


def test_aliases_are_exact() -> None:
    assert find_gpu("l4").id == "l4"
    assert find_gpu("L40").id == "l40"
    assert find_gpu(" NVIDIA H100 80GB  HBM3 ").id == "h100-sxm"
    with pytest.raises(UsageError) as caught:
        find_gpu("h10")
    assert "h100" in (caught.value.hint or "")


def test_unknown_name_without_neighbour_still_hints() -> None:
    with pytest.raises(UsageError, match="no GPU profile named 'zzzzzz'"):
        find_gpu("zzzzzz")


@pytest.mark.parametrize("gpu", load_gpus(), ids=lambda gpu: gpu.id)
def test_every_number_is_sane_and_has_a_source(gpu) -> None:  # type: ignore[no-untyped-def]
    assert GIB <= gpu.memory_bytes <= 1024 * GIB
    assert 90e9 <= gpu.memory_bandwidth_bytes_per_second <= 10e12
    assert all(flops > 1e12 for flops in gpu.dense_flops.values())
    assert set(gpu.dense_flops) <= {"float32", "float16", "bfloat16", "fp8", "int8", "fp4"}
    assert all(len(source) > 20 for source in gpu.sources.values())
    if gpu.price is not None:
        assert 0.05 < gpu.price.usd_per_hour < 15
        assert gpu.price.date.startswith("202")
        assert gpu.price.source


@pytest.mark.parametrize(
    ("name", "low_gib", "high_gib"),
    [  # what drivers were seen to report; never the marketing size
        ("h100", 79.10, 79.25),
        ("a100-40", 39.37, 39.49),
        ("l40s", 44.4, 44.6),
        ("a6000", 47.4, 47.6),
        ("a10g", 21.9, 22.3),
        ("l4", 21.9, 22.3),
        ("3090", 23.5, 23.7),
        ("4090", 23.5, 23.65),
        ("t4", 14.5, 14.8),
        ("4080", 15.9, 16.0),
        ("h20-3e", 139.6, 139.9),
        ("rtx-pro-6000", 94.9, 95.1),
    ],
)
def test_totals_are_what_drivers_report(name: str, low_gib: float, high_gib: float) -> None:
    assert low_gib <= find_gpu(name).memory_bytes / GIB <= high_gib


def test_flops_fall_back_to_a_wider_format() -> None:
    a100 = find_gpu("a100")
    assert a100.flops("fp8") == a100.dense_flops["bfloat16"]
    assert find_gpu("h100").flops("fp8") == 1978e12
    assert find_gpu("v100").flops("bfloat16") == find_gpu("v100").dense_flops["float16"]


def test_default_gpus_exist() -> None:
    assert [find_gpu(name).id for name in DEFAULT_GPUS] == list(DEFAULT_GPUS)
