"""GPU profiles: names, sourced numbers, links, slices, clouds' instances, and speeds scaled from one to another."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.clouds import all_instances, find_instance
from kvplan.catalog.devices.gpus import (
    DEFAULT_GPUS,
    as_equipped,
    find_gpu,
    load_gpus,
    parse_gpu_count,
    unlisted_hint,
    with_bridges,
)
from kvplan.catalog.devices.kernel_tables import read_kernel_tables
from kvplan.catalog.devices.measured import scaled
from kvplan.catalog.devices.measured_profile import MeasuredProfile
from kvplan.catalog.devices.slices import slices_of
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


def test_editions_of_a_card_that_differ_are_two_gpus() -> None:
    server, workstation = (
        find_gpu(f"NVIDIA RTX PRO 6000 Blackwell {edition} Edition") for edition in ("Server", "Workstation")
    )
    assert find_gpu("rtx pro 6000") == server and server.id != workstation.id
    assert server.memory_bandwidth_bytes_per_second == 1597e9 < workstation.memory_bandwidth_bytes_per_second == 1792e9
    assert server.memory_bytes == workstation.memory_bytes
    assert {gpu.gpu for gpu in all_instances() if gpu.name.startswith("g4-standard")} == {"rtx-pro-6000"}


@pytest.mark.parametrize("name", ["b200", "b300", "gb200", "gb300", "h200"])
def test_no_bus_to_the_host_is_faster_than_pcie_5(name: str) -> None:
    assert find_gpu(name).pcie_bytes_per_second == 64e9


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
        ("4080", 15.5, 15.7),  # WSL shows 15.99
        ("4060", 7.6, 7.7),
        ("b300", 267.6, 267.8),
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


@pytest.mark.parametrize(
    ("name", "nvlink"),
    [
        ("h100-sxm", (True, True, True)),
        ("mi300x", (True, True, True)),
        ("a100-80gb-pcie", (False, False, False)),
        ("rtx-3090", (False, False, False)),
        ("v100", (True, True, True)),
        ("tesla v100-pcie-32gb", (False, False, False)),
        ("v100s", (False, False, False)),
        ("l40s", (False, False, False)),
    ],
)
def test_nvlink_joins_a_node_or_what_a_bridge_joins(name: str, nvlink: tuple[bool, ...]) -> None:
    gpu = find_gpu(name)
    assert tuple(gpu.joins_by_nvlink(count) for count in (2, 4, 8)) == nvlink
    assert not gpu.joins_by_nvlink(gpu.nvlink_gpus + 1) and gpu.nvlink_gpus == gpu.max_gpus_per_node
    bridged = gpu.with_bridge()
    if gpu.bridged_gpus is None:
        assert bridged is gpu
    else:
        assert tuple(bridged.joins_by_nvlink(count) for count in (2, 4, 8)) == (True, False, False)
        assert bridged.link_bytes_per_second(2) == gpu.nvlink_bytes_per_second
        assert bridged.link_bytes_per_second(4) == gpu.link_bytes_per_second(2) == gpu.pcie_bytes_per_second


@pytest.mark.parametrize(("name", "gbit"), [("gb200", 400), ("gb200-nvl72", 400), ("gb300", 800), ("GB300 NVL72", 800)])
def test_nvlink_joins_the_trays_of_a_rack(name: str, gbit: int) -> None:
    gpu = find_gpu(name)
    assert (gpu.max_gpus_per_node, gpu.nvlink_gpus, gpu.nvlink_bytes_per_second) == (4, 72, 900e9)
    assert gpu.joins_by_nvlink(72) and not gpu.joins_by_nvlink(73)
    assert gpu.network_bytes_per_second == gbit * 1e9 / 8


@pytest.mark.parametrize(
    ("name", "gbit"),
    [("h100", 400), ("h200", 400), ("h800", 400), ("b200", 400), ("b300", 800), ("mi300x", 400), ("mi355x", 400)],
)
def test_servers_have_one_adapter_for_each_gpu(name: str, gbit: int) -> None:
    gpu = find_gpu(name)
    assert gpu.has_known_network and gpu.network_bytes_per_second == gbit * 1e9 / 8


def test_a_network_that_is_given_is_known() -> None:
    card = find_gpu("l40s")
    assert not card.has_known_network
    (given,) = as_equipped([card], nvlink_bridge=False, network_bytes_per_second=50e9)
    assert given.has_known_network and given.network_bytes_per_second == 50e9 and given.id == card.id
    assert as_equipped([card], nvlink_bridge=False, network_bytes_per_second=None) == (card,)


def test_only_cards_of_pcie_form_take_bridges() -> None:
    takers = {gpu.id for gpu in load_gpus() if gpu.bridged_gpus is not None}
    assert {"a30", "a40", "a100-40gb-pcie", "a100-80gb-pcie", "h100-pcie", "h100-nvl", "a6000", "rtx-3090"} <= takers
    assert not any(name.endswith("sxm") for name in takers) and not takers & {"h200", "b200", "gh200", "l40s"}
    assert all(gpu.nvlink_bytes_per_second for gpu in load_gpus() if gpu.id in takers)


def test_bridges_that_no_gpu_takes_are_refused() -> None:
    assert [gpu.has_bridge for gpu in with_bridges([find_gpu("a40"), find_gpu("h100")])] == [True, False]
    with pytest.raises(UsageError, match="None of these GPUs takes an NVLink bridge") as caught:
        with_bridges([find_gpu("h100"), find_gpu("l4")])
    assert "a100-80gb-pcie" in (caught.value.hint or "")


def test_default_gpus_exist() -> None:
    assert [find_gpu(name).id for name in DEFAULT_GPUS] == list(DEFAULT_GPUS)


@pytest.mark.parametrize(
    ("text", "count", "gpu"),
    [
        ("h200", 1, "h200"),
        ("8xh200", 8, "h200"),
        ("8 x H200", 8, "h200"),
        ("h200x8", 8, "h200"),
        ("h200 x 8", 8, "h200"),
        ("h200:8", 8, "h200"),
        ("4*l4", 4, "l4"),
        ("4090x2", 2, "rtx-4090"),
        ("mi300x", 1, "mi300x"),
        ("8xmi300x", 8, "mi300x"),
        ("mi300xx8", 8, "mi300x"),
    ],
)
def test_a_count_of_gpus_is_read_with_the_name(text: str, count: int, gpu: str) -> None:
    found = parse_gpu_count(text)
    assert (found.num_gpus, found.gpu.id) == (count, gpu)


@pytest.mark.parametrize(
    ("text", "sentence"), [("0xh200", "the count must be at least 1"), ("8xh1000", "named 'h1000'"), ("h2xx", "'h2xx'")]
)
def test_a_count_of_nothing_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_gpu_count(text)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m3-max", "llama.cpp"),
        ("Apple M2 Ultra", "llama.cpp"),
        ("macbook-pro", "llama.cpp"),
        ("rx-7900-xtx", "Radeon"),
        ("7900xtx", "Radeon"),
        ("strix-halo", "built-in graphics"),
        ("mi210", "mi250x"),
        ("amd-instinct-mi350x", "--gpu mi355x has its memory"),
        ("gaudi3", "Gaudi"),
        ("jetson-agx-orin", "share the host's memory"),
        ("Jetson Thor", "gb10"),
        ("tpu-v5e", "TPUs"),
        ("gtx-1080-ti", "compute capability 7.0"),
        ("p100", "compute capability 7.0"),
    ],
)
def test_a_device_without_a_profile_gets_a_way_out(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_gpu_count(name)
    assert name in caught.value.message and words in (caught.value.hint or "")


def test_no_profile_is_taken_for_a_device_without_one() -> None:
    for gpu in load_gpus():
        assert all(find_gpu(name) is gpu for name in (gpu.id, gpu.name, *gpu.aliases))
        assert unlisted_hint(gpu.id) is None


@pytest.mark.parametrize(
    ("text", "gpu", "gib", "multiprocessors", "share"),
    [
        ("h100-1g.10gb", "h100-sxm", 9.75, 16, 1 / 8),
        ("h100-80gb:3g.40gb", "h100-sxm", 39.5, 60, 1 / 2),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", "h100-sxm", 19.62, 26, 1 / 4),
        ("NVIDIA-A100-SXM4-40GB-MIG-3g.20gb", "a100-40gb-sxm", 19.5, 42, 1 / 2),
        ("a100-40gb 1g.5gb+me", "a100-40gb-sxm", 4.75, 14, 1 / 8),
        ("a100-80gb-2g.20gb", "a100-80gb-sxm", 19.5, 28, 1 / 4),
        ("H200-4g.71gb", "h200", 69.5, 64, 1 / 2),
        ("b200-1g.23gb", "b200", 20.5, 18, 1 / 8),
    ],
)
def test_mig_slices_have_a_share_of_their_gpu(
    text: str, gpu: str, gib: float, multiprocessors: int, share: float
) -> None:
    whole, part = find_gpu(gpu), find_gpu(text)
    assert part.part_of == gpu and find_gpu(part.id) == part and parse_gpu_count(f"2x{text}").gpu == part
    assert part.memory_bytes == pytest.approx(gib * GIB, rel=1e-6)
    assert part.multiprocessors == multiprocessors
    assert part.memory_bandwidth_bytes_per_second == share * whole.memory_bandwidth_bytes_per_second
    assert part.flops("bfloat16") == pytest.approx(whole.flops("bfloat16") * multiprocessors / whole.multiprocessors)
    assert part.nvlink_bytes_per_second is None and part.price is None


@pytest.mark.parametrize("gpu", load_gpus(), ids=lambda gpu: gpu.id)
def test_slices_are_no_more_than_their_gpu(gpu) -> None:  # type: ignore[no-untyped-def]
    for part in slices_of(gpu).values():
        assert part.instances * part.memory_bytes <= 1.001 * gpu.memory_bytes
        assert part.instances * part.multiprocessors <= gpu.multiprocessors
        assert part.instances * part.memory_share <= 1 and len(part.source) > 20


@pytest.mark.parametrize(
    ("text", "hint"),
    [("a100-1g.5gb", "1g.5gb is a slice of a100-40gb-sxm"), ("l40s-1g.10gb", "no MIG slices of l40s are known")],
)
def test_an_unknown_slice_names_those_that_are_known(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="There is no MIG slice") as caught:
        find_gpu(text)
    assert hint in (caught.value.hint or "")


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
