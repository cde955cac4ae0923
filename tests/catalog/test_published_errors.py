"""Intervals of predicted speeds: the group that is used, and the file that ships."""

from __future__ import annotations

import pytest

from kvplan.catalog.published_errors import (
    ErrorGroup,
    ErrorInterval,
    PublishedErrors,
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
