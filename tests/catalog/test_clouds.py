"""Instances that clouds rent by name: their GPUs, their prices, and where these come from."""

import pytest

from kvplan.catalog.devices.clouds import all_instances, find_instance
from kvplan.catalog.devices.gpus import find_gpu, parse_gpu_count
from kvplan.errors import UsageError


@pytest.mark.parametrize("instance", all_instances(), ids=lambda each: each.name)
def test_every_instance_has_gpus_that_are_known_and_a_source(instance) -> None:
    gpu = find_gpu(instance.gpu)
    counted = parse_gpu_count(instance.name)
    assert (counted.gpu.id, counted.num_gpus) == (gpu.id, instance.num_gpus)
    assert 1 <= instance.num_gpus <= gpu.max_gpus_per_node
    if instance.price is not None:
        assert 0.3 < instance.price.usd_per_hour / instance.num_gpus < 20
        assert instance.price.date.startswith("202")
        assert instance.price.source and instance.region
    if instance.network_bytes_per_second is not None:
        assert 0.7e9 <= instance.network_bytes_per_second / instance.num_gpus <= 100e9 / 2
        assert instance.network_source


@pytest.mark.parametrize(
    ("name", "num_gpus", "gpu"),
    [
        ("p5.48xlarge", 8, "h100-sxm"),
        ("2xp5.48xlarge", 16, "h100-sxm"),
        ("p4d.24xlarge", 8, "a100-40gb-sxm"),
        ("A3-HighGPU-8g", 8, "h100-sxm"),
        ("a3-highgpu-8g:2", 16, "h100-sxm"),
        ("Standard_ND96isr_H200_v5", 8, "h200"),
        ("nd96isr_h200_v5", 8, "h200"),
        ("ND96isr H200 v5", 8, "h200"),
        ("g2-standard-48", 4, "l4"),
        ("Standard_ND96asr_v4", 8, "a100-40gb-sxm"),
        ("nd96asr_a100_v4", 8, "a100-40gb-sxm"),
    ],
)
def test_an_instance_names_all_of_its_gpus(name, num_gpus, gpu) -> None:
    counted = parse_gpu_count(name)
    assert (counted.num_gpus, counted.gpu.id) == (num_gpus, gpu)


def test_a_gpu_of_an_instance_has_its_price_and_its_neighbours() -> None:
    gpu = parse_gpu_count("p5.48xlarge").gpu
    assert gpu.price.usd_per_hour == pytest.approx(55.04 / 8)
    assert "rented whole" in gpu.price.source and "us-east-1" in gpu.price.source
    alone = parse_gpu_count("4xa3-highgpu-1g").gpu
    assert alone.max_gpus_per_node == alone.nvlink_gpus == 1
    rack = parse_gpu_count("ND128isr_NDR_GB200_v6").gpu
    assert (rack.max_gpus_per_node, rack.nvlink_gpus) == (4, find_gpu("gb200").nvlink_gpus)
    assert not alone.has_known_network and alone.network_bytes_per_second == 12.5e9
    assert gpu.network_bytes_per_second == find_gpu("h100-sxm").network_bytes_per_second
    assert parse_gpu_count("p4d.24xlarge").gpu.network_bytes_per_second == 50e9 / 8  # of a DGX A100: 25e9
    assert parse_gpu_count("p5e.48xlarge").gpu.price is None  # no source: not the price of another place


def test_what_is_no_instance_says_so() -> None:
    assert find_instance("h100") is None
    with pytest.raises(UsageError) as error:
        parse_gpu_count("p5.47xlarge")
    assert "p5.48xlarge" in error.value.hint and "8xh100" in error.value.hint
    with pytest.raises(UsageError) as error:
        parse_gpu_count("Standard_ND40rs_v2")
    assert "name the GPUs of the instance" in error.value.hint
    with pytest.raises(UsageError) as error:
        find_gpu("p5.48xlarge")
    assert error.value.hint == "its GPUs are 8xh100-sxm"
