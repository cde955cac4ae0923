"""Where the lines of a pair of axes lie, if the second has no values of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.schedules.lines import frontier_utilizations, make_search

BASE = TrialSettings(0.9, 8, 16, 64, 512)


class Rising:
    """Contexts of 1,000 tokens for every hundredth of utilization beyond 0.2."""

    spec = SimpleNamespace(max_position_embeddings=4096)

    def memory(self, settings: TrialSettings) -> Any:
        fits = settings.max_model_len <= 100_000 * (settings.gpu_memory_utilization - 0.2) + 1e-6
        return SimpleNamespace(outcome="ok" if fits else "rejected_ctx")


def test_the_frontier_is_searched_where_it_is_expected_to_rise() -> None:
    """Not in steps of 0.12, of which at most one lies there."""
    predictor: Any = Rising()
    (search,) = make_search(["max_model_len*gpu_memory_utilization"], {}, BASE, predictor, 0).searches
    shares = [line[0].gpu_memory_utilization for line in search.lines]
    assert shares == [0.193, 0.201, 0.209, 0.217, 0.225, 0.233, 0.241, 0.249]
    starting = [sum(predictor.memory(settings).outcome == "ok" for settings in line) for line in search.lines]
    assert starting[0] == 0 and starting[-1] == 64 and len(set(starting)) == 7


def test_a_frontier_that_never_rises_has_no_values() -> None:
    predictor: Any = Rising()
    assert frontier_utilizations(BASE, 200_000, 300_000, predictor) == []
    assert frontier_utilizations(BASE, 64, 64, predictor) == []


def test_given_utilizations_stay() -> None:
    predictor: Any = Rising()
    axes = {"gpu_memory_utilization": (0.3, 0.6)}
    (search,) = make_search(["max_model_len*gpu_memory_utilization"], axes, BASE, predictor, 0).searches
    assert [line[0].gpu_memory_utilization for line in search.lines] == [0.3, 0.6]
