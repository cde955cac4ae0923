"""Intervals learned from scored rows, and held out by source."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from kvplan.catalog.published_errors import server_kind
from published_speeds.intervals import LEAST_ROWS, fit_intervals, held_out
from published_speeds.predictions import Figure
from published_speeds.rows import PublishedRow, read_rows
from published_speeds.scores import Compared, RowScore, interval_score

ROWS = [row for row in read_rows() if isinstance(row, PublishedRow)]


_SERVER = server_kind("vLLM", "Hopper", is_mixture=False, is_latent=False)


def _scores(number: int, num_sources: int, bias: float = 1.0) -> list[RowScore]:
    """Measurements within 10 % of ``bias`` times the prediction, of as many rows of each source."""
    rng = random.Random(0)
    by_source: dict[str, list[PublishedRow]] = {}
    for row in ROWS:
        by_source.setdefault(row.source, []).append(row)
    rows = [row for group in list(by_source.values())[:num_sources] for row in group[:number]]
    return [
        RowScore(
            row,
            "kernels",
            "vLLM",
            "h100-sxm",
            "Hopper",
            "dense",
            {"tpot": Compared(10 * bias * rng.uniform(0.9, 1.1), Figure(10, 10, 10))},
        )
        for row in rows
    ]


def test_an_interval_lies_around_what_was_measured() -> None:
    scores = _scores(20, 3, bias=1.5)
    found = fit_intervals(scores).interval(_SERVER, "tpot")
    assert found is not None
    assert 1.3 < found.low < 1.45
    assert 1.55 < found.high < 1.7
    assert (found.num_rows, found.num_sources) == (len(scores), 3)


def test_few_rows_or_sources_give_none() -> None:
    assert fit_intervals(_scores(LEAST_ROWS // 4, 3)).interval(_SERVER, "tpot") is None
    assert fit_intervals(_scores(40, 2)).interval(_SERVER, "tpot") is None


def test_a_source_is_held_out_of_its_own_interval() -> None:
    scores = _scores(20, 4)
    odd = scores[0].row.source
    for score in scores:
        if score.row.source == odd:
            score.figures["tpot"] = Compared(100.0, Figure(10, 10, 10))  # type: ignore[index]
    found = held_out(scores)
    assert all(not each.figures["tpot"].is_held for each in found if each.row.source == odd)
    assert {each.row.id for each in found} == {each.row.id for each in scores}


def test_what_other_sources_have_no_row_of_is_held_in_both_directions() -> None:
    """Three sources measured 1.5 times what is predicted, a fourth one, on another generation, two thirds of it."""
    scores = _scores(20, 4, bias=1.5)
    odd = scores[0].row.source
    moved = [
        replace(each, generation="Ada", figures={"tpot": Compared(10 / 1.5, Figure(10, 10, 10))})
        if each.row.source == odd
        else each
        for each in scores
    ]
    assert all(each.figures["tpot"].is_held for each in held_out(moved) if each.row.source == odd)
    same = [replace(each, generation="Hopper") for each in moved]
    assert not any(each.figures["tpot"].is_held for each in held_out(same) if each.row.source == odd)


def test_other_kernels_than_other_sources_are_held_in_both_directions() -> None:
    """Three sources measured 1.5 times what is predicted in 16 bits, a fourth one, in 4, two thirds of it."""
    scores = [replace(each, format="16 bits") for each in _scores(20, 4, bias=1.5)]
    odd = scores[0].row.source
    moved = [
        replace(each, format="4 bits", figures={"tpot": Compared(10 / 1.5, Figure(10, 10, 10))})
        if each.row.source == odd
        else each
        for each in scores
    ]
    assert all(each.figures["tpot"].is_held for each in held_out(moved) if each.row.source == odd)
    same = [replace(each, format="16 bits") for each in moved]
    assert not any(each.figures["tpot"].is_held for each in held_out(same) if each.row.source == odd)


def test_intervals_are_held_out_by_whatever_is_asked_for() -> None:
    """By the one row that is odd: all others keep an interval that it has no part in."""
    scores = _scores(20, 4)
    odd = scores[0].row.id
    scores[0].figures["tpot"] = Compared(100.0, Figure(10, 10, 10))  # type: ignore[index]
    found = {each.row.id: each.figures["tpot"] for each in held_out(scores, lambda each: str(each.row.id == odd))}
    assert not found[odd].is_held
    assert max(each.predicted.high for name, each in found.items() if name == odd) < 15


def test_a_kind_whose_sources_contradict_each_other_takes_the_interval_of_all() -> None:
    """Two sources measured twice what is predicted of mixtures, the third one half: no quantiles of two hold it."""
    dense, mixtures = _scores(20, 4), [replace(each, kind="mixture") for each in _scores(20, 3)]
    odd = mixtures[0].row.source
    moved = [
        replace(each, figures={"tpot": Compared(5.0 if each.row.source == odd else 20.0, Figure(10, 10, 10))})
        for each in mixtures
    ]
    known = fit_intervals([*dense, *moved])
    mixture = server_kind("vLLM", "Hopper", is_mixture=True, is_latent=False)
    found, narrow = known.interval(mixture, "tpot"), known.interval(_SERVER, "tpot")
    assert found is not None and narrow is not None
    assert (found.num_rows, found.num_alike, narrow.num_rows) == (len(dense) + len(moved), len(moved), len(dense))
    assert found.low <= 0.5 < 0.85 < narrow.low < narrow.high < 1.2 < 2 <= found.high


def test_an_interval_score_by_hand() -> None:
    """An interval of 1 to e around a measurement of e squared: 1 wide, and 1 beyond it."""
    assert interval_score(Compared(math.e**2, Figure(1.0, 2.0, math.e))) == pytest.approx(1 + 20)
    assert interval_score(Compared(2.0, Figure(1.0, 2.0, math.e))) == pytest.approx(1)


def test_no_interval_of_times_is_learned_from_a_pool_that_was_predicted_too_small() -> None:
    """4,000 tokens/s of 50 ms each are 200 requests at once, of 1,000 tokens with half their answers."""
    scores = _scores(20, 3)
    measured = replace(scores[0].row.measured, output_throughput=4000.0, tpot_ms=50.0)
    row = replace(scores[0].row, input_tokens=900, output_tokens=200, measured=measured)
    off = replace(scores[0], row=row, figures={"tpot": Compared(500.0, Figure(10, 10, 10))}, pool_tokens=140_000)
    assert off.is_memory_off
    assert not replace(off, pool_tokens=150_000).is_memory_off
    assert fit_intervals([*scores, off]) == fit_intervals(scores)
