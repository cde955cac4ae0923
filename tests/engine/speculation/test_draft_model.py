"""Who drafts: a model in the same pool, whose KV goes wherever the model's goes, and n-grams by vLLM's rule."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import covering_part
from dense_models import DenseCheckpoint
from engine_answers import answer, small_llm
from guessing import LIMITS, prompts
from matrix_cells import CELLS, Cell, Watch, check_drafted, check_in_turn, set_up
from small_models import WINDOWED, Checkpoint, greedy

from kvplan_engine import LLM, EngineError, SamplingParams
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.kept_units import kept_units
from kvplan_engine.requests.drafts import DraftCounts, NgramIndex, num_accepted
from kvplan_engine.speculative_config import SpeculativeConfig

NUM_TOKENS = 24
GRID = covering_part([(cell,) for cell in CELLS], strength=2, values_of=lambda cell: cell[0].values)


def load(path: Path, drafter: Path | None, **settings: Any) -> LLM:
    drafting = None if drafter is None else {"model": str(drafter), "num_speculative_tokens": 3}
    return small_llm(path, **LIMITS | {"speculative_config": drafting} | settings)


@pytest.fixture(scope="module")
def drafter(checkpoints: dict[str, Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with other weights, a little: some of its tokens are the model's."""
    torch.manual_seed(1)
    model = copy.deepcopy(checkpoints["llama"].model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * parameter.std() * torch.randn_like(parameter) if parameter.ndim > 1 else 0.0
    path = tmp_path_factory.mktemp("drafter")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def llm(checkpoints: dict[str, Checkpoint], drafter: Path) -> Iterator[LLM]:
    with load(checkpoints["llama"].path, drafter) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Checkpoint]) -> list[list[int]]:
    return greedy(checkpoints["llama"].model, prompts(), NUM_TOKENS)


@pytest.mark.parametrize("cell", GRID, ids=str)
def test_greedy_tokens_are_those_of_transformers(
    llm: LLM, expected: list[list[int]], tmp_path: Path, cell: Cell
) -> None:
    set_up(llm, cell, tmp_path, pool_tokens=96)
    watch = Watch(llm.engine)
    check_in_turn(llm, watch, cell, prompts(), expected)
    check_drafted(llm)


def test_the_model_as_its_own_drafter_is_always_right(checkpoints: dict[str, Checkpoint]) -> None:
    """Its KV is complete: behind chunks, in the prefix cache, after preemption, where samples fork."""
    path = checkpoints["llama"].path
    with load(path, path, block_size=4, max_num_batched_tokens=24, max_num_seqs=4) as llm:
        set_up(llm, Cell(True, True, "recompute", 16), path, pool_tokens=112)
        params = SamplingParams(n=2, temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        for _ in range(2):
            llm.generate([{"prompt_token_ids": prompt} for prompt in prompts()], params)
        stats = llm.get_stats()
        assert stats["num_preemptions"] > 0 and stats["prefix_cache_hits"] > 0
        assert stats["spec_decode_num_accepted_tokens"] == stats["spec_decode_num_draft_tokens"] > 100


def test_drawn_tokens_are_those_without_a_drafter(checkpoints: dict[str, Checkpoint], drafter: Path) -> None:
    params = SamplingParams(n=2, temperature=0.8, seed=3, top_p=0.9, max_tokens=20, ignore_eos=True, logprobs=1)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts()]
    path = checkpoints["llama"].path
    with load(path, None) as plain, load(path, drafter) as drafting:
        want, found = (each.generate(asked, params) for each in (plain, drafting))
    for one, other in zip(found, want, strict=True):
        assert [each.token_ids for each in one.outputs] == [each.token_ids for each in other.outputs]


def test_its_bytes_are_in_the_account(checkpoints: dict[str, Checkpoint], drafter: Path) -> None:
    """Blocks hold both models' KV, and the weights count together."""
    path = checkpoints["llama"].path
    with load(path, None) as plain, load(path, drafter) as drafting:
        alone, both = plain.engine.memory, drafting.engine.memory
        assert both.weight_bytes == 2 * alone.weight_bytes
        assert both.block_bytes == 2 * alone.block_bytes
        elements = sum(unit.row_elements for unit in kept_units(drafting.engine.model.config))
        assert both.block_bytes == 2 * elements * both.block_size * 4
        drafting.engine.reconfigure(speculative_config=None)
        assert drafting.engine.memory.block_bytes == alone.block_bytes
        assert answer(drafting, prompts(), 6) == answer(plain, prompts(), 6)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tensor_parallel_size": 2}, "speculative_config 'draft_model' runs in one process"),
        ({"model_impl": "transformers"}, "speculative_config 'draft_model' is for the engine's own decoder"),
    ],
)
def test_what_it_does_not_go_with_is_one_sentence(drafter: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        load(drafter, drafter, **settings)


def test_pairs_that_cannot_be(checkpoints: dict[str, Checkpoint], drafter: Path, tmp_path: Path) -> None:
    windowed = DenseCheckpoint("gemma3", tmp_path, WINDOWED)
    with pytest.raises(EngineError, match="layers all keep every token alike"):
        load(windowed.path, windowed.path)
    with pytest.raises(EngineError, match="has a vocabulary of 50,257 tokens, and the model one of 384"):
        load(drafter, "gpt2", load_format="dummy")  # type: ignore[arg-type]
    with load(checkpoints["llama"].path, None) as llm, pytest.raises(EngineError, match="without this draft model"):
        llm.engine.reconfigure(speculative_config={"model": str(drafter), "num_speculative_tokens": 2})


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
