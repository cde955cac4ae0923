"""Intervals of predicted speeds: the group that is used, and the file that ships."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu, load_gpus
from kvplan.catalog.published_errors import (
    ErrorGroup,
    ErrorInterval,
    PublishedErrors,
    combination,
    error_group,
    published_errors,
)


def test_the_smallest_group_that_was_measured() -> None:
    wide, narrow = ErrorInterval(0.5, 2.0, 90, 9), ErrorInterval(0.8, 1.2, 30, 4)
    known = PublishedErrors(
        {
            (ErrorGroup("roofline", None, None), "tpot"): wide,
            (ErrorGroup("roofline", None, "dense"), "tpot"): narrow,
        }
    )
    assert known.interval(error_group("roofline", "vLLM", is_mixture=False), "tpot") == narrow
    assert known.interval(error_group("roofline", "vLLM", is_mixture=True), "tpot") == wide
    assert known.interval(error_group("roofline", "vLLM", is_mixture=False), "ttft") is None
    assert known.interval(error_group("kernels", "vLLM", is_mixture=False), "tpot") is None


def test_what_no_row_was_of_may_be_off_in_either_direction() -> None:
    slow = ErrorInterval(0.8, 2.0, 30, 4, ("dense, Hopper",))
    known = PublishedErrors({(ErrorGroup("kernels", None, None), "tpot"): slow})
    group = error_group("kernels", "vLLM", is_mixture=True)
    latent = combination("Blackwell", is_mixture=True, is_latent=True)
    assert latent == "latent attention, Blackwell"
    found = known.interval(group, "tpot", latent)
    assert found is not None
    assert (found.low, found.high, found.num_rows) == (0.5, 2.0, 30)
    assert known.interval(group, "tpot", "dense, Hopper") == known.interval(group, "tpot") == slow


def test_nothing_is_faster_than_its_data_sheet_whatever_was_measured() -> None:
    slow = ErrorInterval(0.8, 6.0, 30, 4, ("dense, Hopper",))
    known = PublishedErrors({(ErrorGroup("roofline", None, None), "tpot"): slow})
    assert known.interval(error_group("roofline", "vLLM", is_mixture=True), "tpot", "mixture, AMD") == slow


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
    assert error_group("kernels", "TensorRT-LLM", is_mixture=False) == error_group(
        "kernels", "trtllm", is_mixture=False
    )


def test_what_ships_is_read_and_written_alike() -> None:
    known = published_errors()
    assert PublishedErrors.from_json(known.as_json()) == known
    assert all(each.low < 1 < each.high or each.num_rows for each in known.intervals.values())
    for figure in ("ttft", "tpot", "throughput"):
        found = known.interval(error_group("roofline", "vllm", is_mixture=False), figure)  # type: ignore[arg-type]
        assert found is not None
        assert found.num_rows >= 20


def test_factors_that_are_no_interval() -> None:
    record = {"origin": "roofline", "engine": None, "kind": None, "figure": "tpot", "num_rows": 1, "num_sources": 1}
    with pytest.raises(ValueError, match="no interval"):
        PublishedErrors.from_json([record | {"low": 2.0, "high": 1.0}])
