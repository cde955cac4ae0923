"""N-grams propose by vLLM's rule: the longest that ends the sequence and stands in it before, at its first place."""

from __future__ import annotations

import random

import pytest

from kvplan_engine import EngineError
from kvplan_engine.config import EngineConfig
from kvplan_engine.requests.drafts import DraftCounts, NgramIndex, num_accepted
from kvplan_engine.speculative_config import SpeculativeConfig


def by_the_rule(tokens: list[int], shortest: int, longest: int, number: int) -> list[int]:
    """Look at every place, without an index."""
    for length in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - length):
            if tokens[start : start + length] == tokens[-length:]:
                return tokens[start + length : start + length + number]
    return []


@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [
        ([7, 1, 2, 3, 9, 4, 1, 2, 3], [9, 4]),
        ([1, 2, 3, 1, 2, 9, 1, 2], [3, 1]),  # the first of two places
        ([5, 2, 8, 1, 2, 6, 1, 2], [6, 1]),  # the longer one, though a shorter one stands before it
        ([4, 4, 4], [4]),  # over itself, and to the sequence's end
        ([1, 2, 3, 4], []),
        ([1], []),
        ([], []),
    ],
)
def test_what_followed_is_proposed(tokens: list[int], drafts: list[int]) -> None:
    assert NgramIndex(1, 3).propose(tokens, 2) == drafts
    assert by_the_rule(tokens, 1, 3, 2) == drafts


def test_an_index_that_grows_proposes_as_the_rule_says() -> None:
    rng = random.Random(3)
    for _ in range(200):
        shortest = rng.randint(1, 4)
        longest, number = shortest + rng.randint(0, 3), rng.randint(1, 5)
        index, tokens = NgramIndex(shortest, longest), [rng.randrange(3) for _ in range(rng.randint(0, 6))]
        for _ in range(12):
            assert index.propose(tokens, number) == by_the_rule(tokens, shortest, longest, number)
            tokens += [rng.randrange(3) for _ in range(rng.randint(1, 4))]


def test_drafts_are_accepted_up_to_the_first_that_was_not_drawn() -> None:
    assert num_accepted([1, 2, 3], [1, 2, 9, 3]) == 2
    assert num_accepted([1, 2, 3], [1, 2, 3, 9]) == 3
    assert num_accepted([1, 2, 3], [4, 2, 3, 9]) == 0
    assert num_accepted([], [4]) == 0


def test_counts_are_those_of_vllm_metrics() -> None:
    counts = DraftCounts(3)
    for num_drafts, accepted in [(3, 2), (3, 0), (1, 1)]:
        counts.add(num_drafts, accepted)
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (3, 7, 3)
    assert counts.accepted_per_position == [2, 1, 0]


def config(**values: object) -> SpeculativeConfig | None:
    return EngineConfig("gpt2", speculative_config=values).speculative_config  # type: ignore[arg-type]


def test_settings_are_read_as_vllm_reads_them() -> None:
    assert config(method="ngram", num_speculative_tokens=3) == SpeculativeConfig("ngram", 3, 5, 5)
    assert config(model="ngram", num_speculative_tokens=3, prompt_lookup_max=2) == SpeculativeConfig("ngram", 3, 2, 2)
    assert config(method="ngram", num_speculative_tokens=1, prompt_lookup_min=1, prompt_lookup_max=4) == (
        SpeculativeConfig("ngram", 1, 1, 4)
    )
    assert config(method="mimo_mtp", num_speculative_tokens=1) == SpeculativeConfig("mtp", 1)
    assert EngineConfig("gpt2").speculative_config is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"method": "ngram"}, "num_speculative_tokens of speculative_config must be a whole number from 1 to 64"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "from 1 to 64, got 0"),
        ({"method": "ngram", "num_speculative_tokens": True}, "from 1 to 64, got True"),
        ({"method": "medusa", "num_speculative_tokens": 3}, "has method 'medusa', which is not one of"),
        ({"num_speculative_tokens": 3}, "has method None"),
        ({"method": "draft_model", "num_speculative_tokens": 3}, "has method 'draft_model' and no model"),
        ({"method": "ngram", "num_speculative_tokens": 3, "depth": 1}, "has no 'depth' here"),
        (
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 4, "prompt_lookup_max": 2},
            "prompt_lookup_min 4, which is more than prompt_lookup_max 2",
        ),
    ],
)
def test_what_is_no_such_setting_is_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        config(**values)


def test_a_word_is_no_configuration() -> None:
    with pytest.raises(EngineError, match="speculative_config must be a dict, got 'ngram'"):
        EngineConfig("gpt2", speculative_config="ngram")  # type: ignore[arg-type]


def test_steps_that_wait_for_tokens_do_not_run_ahead() -> None:
    with pytest.raises(EngineError, match="async_scheduling does not go with speculative_config"):
        EngineConfig(
            "gpt2",
            async_scheduling=True,
            speculative_config={"method": "ngram", "num_speculative_tokens": 2},  # type: ignore[arg-type]
        )
