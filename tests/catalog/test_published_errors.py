"""Intervals of predicted speeds: the group that is used, and the file that ships."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu, load_gpus
from kvplan.catalog.published_errors import (
    Ends,
    ErrorGroup,
    ErrorInterval,
    PublishedErrors,
    ServerKind,
    published_errors,
    server_kind,
)


def _kind(engine: str = "vLLM", generation: str = "Hopper", kind: str = "dense") -> ServerKind:
    return server_kind(engine, generation, is_mixture=kind != "dense", is_latent=kind == "latent")


def test_the_smallest_group_that_was_measured() -> None:
    hopper = (("dense, vllm, Hopper", 25), ("dense, sglang, Hopper", 5))
    everything = (*hopper, ("mixture, vllm, Hopper", 60))
    wide, narrow = ErrorInterval(0.5, 2.0, 90, 9, everything), ErrorInterval(0.8, 1.2, 30, 4, hopper)
    groups = {(ErrorGroup(None, None), "tpot"): wide, (ErrorGroup("dense", None), "tpot"): narrow}
    known = PublishedErrors(groups)
    assert known.interval(_kind(), "tpot") == replace(narrow, num_alike=25)
    assert known.interval(_kind("SGLang"), "tpot") == replace(narrow, num_alike=5)
    assert known.interval(_kind("TensorRT-LLM"), "tpot") == narrow
    assert known.interval(_kind(kind="mixture"), "tpot") == replace(wide, num_alike=60)
    assert known.interval(_kind(), "ttft") is None


def test_what_no_row_was_of_may_be_off_in_either_direction() -> None:
    slow = ErrorInterval(0.8, 2.0, 30, 4, (("dense, vllm, Hopper", 30),))
    known = PublishedErrors({(ErrorGroup(None, None), "tpot"): slow})
    latent = _kind(generation="Blackwell", kind="latent")
    assert latent.name == "latent attention, vllm, Blackwell"
    found = known.interval(latent, "tpot")
    assert found is not None
    assert (found.low, found.high, found.num_rows, found.num_alike) == (0.5, 2.0, 30, 0)
    assert known.interval(_kind("SGLang"), "tpot") == slow


def test_kernels_that_no_row_was_of_may_be_off_in_either_direction() -> None:
    """A format of weights or a recurrent state runs on other kernels than those of the rows."""
    measured = ("dense, Hopper, 16 bits", "dense, Hopper, 8 bits")
    slow = ErrorInterval(0.8, 2.0, 30, 4, (("dense, vllm, Hopper", 30),), kernels=measured)
    known = PublishedErrors({(ErrorGroup(None, None), "tpot"): slow})
    ends = {
        name: known.interval(replace(_kind(), format=name), "tpot")
        for name in ("", "16 bits", "8 bits", "4 bits", "16 bits, mamba2")
    }
    assert {name: found and found.low for name, found in ends.items()} == {
        "": 0.8, "16 bits": 0.8, "8 bits": 0.8, "4 bits": 0.5, "16 bits, mamba2": 0.5
    }  # fmt: skip
    assert PublishedErrors.from_json(known.as_json()) == known


def test_nothing_is_faster_than_its_data_sheet_whatever_was_measured() -> None:
    slow = ErrorInterval(0.8, 6.0, 30, 4, (("dense, vllm, Hopper", 30),))
    known = PublishedErrors({(ErrorGroup(None, None), "tpot"): slow})
    assert known.interval(_kind(generation="AMD", kind="mixture"), "tpot", in_any_direction=False) == slow


def test_a_tpot_by_a_data_sheet_reaches_as_far_as_all_of_them_did() -> None:
    own, sheets = ErrorInterval(0.8, 1.5, 60, 6), ErrorInterval(0.9, 4.0, 40, 5)
    groups = {(ErrorGroup("dense", None), "tpot"): own, (ErrorGroup(None, None), "tpot_sheet"): sheets}
    known = PublishedErrors(groups | {(ErrorGroup("dense", None), "ttft"): own})
    by_sheet = known.interval(_kind(), "tpot", in_any_direction=False)
    assert by_sheet == replace(own, high=4.0)
    assert known.interval(_kind(), "ttft", in_any_direction=False) == own
    by_kernels = known.interval(_kind(), "tpot")
    assert by_kernels is not None and by_kernels.high == 1.5


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.9, 1.15, "15 %"), (0.8, 1.1, "25 %"), (0.5, 1.1, "a factor of 2"), (0.9, 2.43, "a factor of 2.4")],
)
def test_a_width_in_words(low: float, high: float, text: str) -> None:
    assert ErrorInterval(low, high).width_text == text


@pytest.mark.parametrize(
    ("gpu", "architecture"),
    [("v100-32gb", "Volta"), ("t4", "Turing"), ("a40", "Ampere"), ("l40s", "Ada"), ("h20-141gb", "Hopper"),
     ("rtx-5090", "Blackwell"), ("b300", "Blackwell"), ("mi300x", "AMD")],
)  # fmt: skip
def test_generations_of_gpus(gpu: str, architecture: str) -> None:
    assert find_gpu(gpu).architecture == architecture


def test_every_nvidia_gpu_has_a_generation() -> None:
    assert {gpu.architecture for gpu in load_gpus() if gpu.vendor == "nvidia"} == {
        "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"
    }  # fmt: skip


def test_engines_by_any_of_their_names() -> None:
    assert _kind("TensorRT-LLM") == _kind("trtllm")


def test_what_ships_is_read_and_written_alike() -> None:
    known = published_errors()
    assert PublishedErrors.from_json(known.as_json()) == known
    assert all(each.low < 1 < each.high or each.num_rows for each in known.intervals.values())
    for figure in ("ttft", "tpot", "throughput"):
        found = known.interval(_kind(), figure)  # type: ignore[arg-type]
        assert found is not None
        assert found.num_rows >= 20
        assert found.num_alike >= 20


@pytest.mark.parametrize(("low", "high"), [(2.0, 1.0), (0.0, 2.0)])
def test_factors_that_are_no_interval(low: float, high: float) -> None:
    record = {"engine": None, "kind": None, "figure": "tpot", "num_rows": 1, "num_sources": 1, "measured": {}}
    with pytest.raises(ValueError, match="no interval"):
        PublishedErrors.from_json([record | {"low": low, "high": high}])


def test_p99_has_an_interval_of_its_own_where_one_was_learned() -> None:
    vllm = server_kind("vLLM", "Hopper", is_mixture=False, is_latent=False)
    tpot = published_errors().interval(vllm, "tpot")
    ttft = published_errors().interval(vllm, "ttft")
    assert tpot is not None and ttft is not None and tpot.tail is not None
    assert tpot.at("p50") == tpot.at("mean") == (tpot.low, tpot.high) != tpot.at("p99") == tpot.tail
    assert tpot.at("p95") == (min(tpot.low, tpot.tail.low), max(tpot.high, tpot.tail.high))
    assert ttft.at("p99") == ttft.at("p50")  # the median's holds it


def test_a_p99_near_the_mean_is_surer_than_one_far_from_it() -> None:
    found = ErrorInterval(0.8, 1.5, tail=Ends(0.4, 3.0), near_tail=Ends(0.7, 2.0))
    assert [found.at("p99", times) for times in (1.0, 1.3, 1.31)] == [(0.7, 2.0), (0.7, 2.0), (0.4, 3.0)]
    assert found.at("p95", 1.0) == (0.7, 2.0)
    assert found.at("p99") == (0.4, 3.0)  # nobody said how far it is
    shipped = published_errors().interval(_kind(), "tpot")
    assert shipped is not None and shipped.tail is not None and shipped.near_tail is not None
    near, far = (ends.high / ends.low for ends in (shipped.near_tail, shipped.tail))
    assert near < far


def test_a_p99_reaches_no_less_far_than_its_mean() -> None:
    """By a data sheet the mean may be five times what is predicted: 50 ms of 10. So may the p99."""
    interval = ErrorInterval(0.5, 5.0, tail=Ends(0.4, 3.0))
    assert interval.at("p99", 1.25) == (0.4, 4.0)
    assert interval.at("p99", 2.0) == interval.at("p99") == (0.4, 3.0)


def test_ttft_has_an_interval_of_sglang_and_one_of_all_others() -> None:
    known = published_errors()
    vllm, trtllm, sglang = (known.interval(_kind(each), "ttft") for each in ("vLLM", "TensorRT-LLM", "SGLang"))
    assert vllm is not None and trtllm is not None and sglang is not None
    assert (vllm.low, vllm.high) == (trtllm.low, trtllm.high)
    assert sglang.high / sglang.low > vllm.high / vllm.low
    assert {name.split(", ")[1] for name, _ in sglang.measured} == {"sglang"}
    assert "sglang" not in {name.split(", ")[1] for name, _ in vllm.measured}
    unknown = known.interval(replace(_kind(), format="3 bits"), "ttft")
    assert unknown is not None and (unknown.low, unknown.high) == (vllm.low, vllm.high)  # no matter of kernels


def test_p99_keeps_its_distance_when_an_interval_moves() -> None:
    published = ErrorInterval(0.8, 1.5, tail=Ends(0.4, 3.0))
    assert ErrorInterval(0.9, 1.1).beyond(published).tail == pytest.approx((0.45, 2.2))
    assert ErrorInterval(0.9, 1.1).beyond(ErrorInterval(0.8, 1.5)).tail is None
    assert published.times(1.0, 2.0).tail == (0.4, 6.0)
    assert published.times(1.0, 2.0).near_tail is None
