"""A draft model in the same pool: the tokens are those without it, and its KV goes wherever the model's goes."""

from __future__ import annotations

import copy
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
from kvplan_engine.description.kept_units import kept_units

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
