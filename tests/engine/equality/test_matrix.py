"""The tokens are transformers', greedy and searched, in every combination of what paging makes possible.

Every cell of :mod:`matrix_cells` x {CPU kernels, reference} for every native architecture, over a pool that is too
small for what it is asked. CI runs a part in which any two values of these six axes meet; `make exhaustive` runs all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from beam_reference import END_TOKENS, assert_same, reference
from covering import covering_part
from engine_answers import random_prompts, small_llm
from matrix_cells import (
    ALL_CELLS,
    CELLS,
    Cell,
    Watch,
    add_beams,
    beam_answers,
    check_in_turn,
    set_up,
)
from small_models import ARCHITECTURES, OTHER_KINDS, Checkpoint, greedy

from kvplan_engine import LLM, BeamSearchParams, EngineError

BACKENDS = ("cpu", "reference")
NUM_TOKENS = 8
PROMPT_LENGTHS = (28, 41, 25)  # the first two fill the pool, whatever the block size, and outgrow it
POOL_TOKENS = 80
BEAMS = BeamSearchParams(beam_width=4, max_tokens=8, length_penalty=0.6)


_MODELS = [*product(ARCHITECTURES, BACKENDS), *product(OTHER_KINDS, BACKENDS[:1])]


def axes_of(cell: tuple[str, str, Cell]) -> tuple[Any, ...]:
    """The six values of a model's name, a backend and a cell."""
    return (*cell[:2], *cell[2].values)


GRID = covering_part([(*model, cell) for model in _MODELS for cell in CELLS], values_of=axes_of)


def prompts() -> list[list[int]]:
    return random_prompts(*PROMPT_LENGTHS, seed=11)


def searched_prompts() -> list[list[int]]:
    """The one that the greedy requests have left in the cache, and a new one, whose beams push it out."""
    return [prompts()[1], *random_prompts(33, seed=12)]


@dataclass(frozen=True, slots=True)
class Expected:
    """Of one architecture, from transformers. searched: tokens and score of each beam, best first."""

    greedy: list[list[int]]
    searched: list[list[tuple[list[int], float]]]


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Checkpoint]) -> dict[str, Expected]:
    answers = {}
    for name, checkpoint in checkpoints.items():
        searched = [reference(checkpoint.model, prompt, BEAMS, END_TOKENS) for prompt in searched_prompts()]
        answers[name] = Expected(greedy(checkpoint.model, prompts(), NUM_TOKENS), searched)
    return answers


@pytest.fixture(scope="module")
def loaded() -> Iterator[dict[tuple[str, str], LLM]]:
    """Each model is loaded once per backend; the cells are reconfigurations of it."""
    engines: dict[tuple[str, str], LLM] = {}
    yield engines
    engines.clear()


def load(checkpoint: Checkpoint, backend: str) -> LLM:
    limits = {"max_num_batched_tokens": 256, "max_num_seqs": 8, "max_model_len": 64}
    llm = small_llm(checkpoint.path, attention_backend=backend, **limits)
    assert llm.engine.model.attention.name == backend
    llm.engine.model.config = replace(llm.engine.model.config, eos_token_ids=END_TOKENS)
    return llm


@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend", "cell"), GRID, ids=str)
def test_tokens_are_those_of_transformers(
    checkpoints: dict[str, Checkpoint],
    expected: dict[str, Expected],
    loaded: dict[tuple[str, str], LLM],
    tmp_path: Path,
    name: str,
    backend: str,
    cell: Cell,
) -> None:
    if (name, backend) not in loaded:
        loaded[name, backend] = load(checkpoints[name], backend)
    llm = loaded[name, backend]
    set_up(llm, cell, tmp_path, pool_tokens=POOL_TOKENS)
    check_greedy(llm, cell, expected[name].greedy)
    check_beams(llm, cell, expected[name].searched)


def check_greedy(llm: LLM, cell: Cell, want: list[list[int]]) -> None:
    watch = Watch(llm.engine)
    check_in_turn(llm, watch, cell, prompts(), want)
    if cell.chunked:
        assert watch.num_decodes_beside_chunks > 0, f"{cell}: decodes waited for the chunks"
    if cell.keeping == "swap":
        assert watch.grown("recomputed_tokens") == 0, f"{cell}: computed again although swapped"
    elif not cell.prefix_caching:
        assert watch.grown("recomputed_tokens") > 0, f"{cell}: nothing computed again"


def check_beams(llm: LLM, cell: Cell, want: list[list[tuple[list[int], float]]]) -> None:
    watch = Watch(llm.engine)
    wanted = searched_prompts()
    for order in [(0,), (1, 0)] if cell.prefix_caching else [(1, 0)]:
        requests = add_beams(llm.engine, [wanted[i] for i in order], BEAMS)
        watch.run()
        for found, i in zip(beam_answers(requests), order, strict=True):
            assert_same(found, want[i], f"{cell}: beams")
    watch.check(cell)


@pytest.mark.parametrize("cell", [cell for cell in ALL_CELLS if not cell.is_possible], ids=str)
def test_tiers_without_a_prefix_cache_are_refused(
    checkpoints: dict[str, Checkpoint], tmp_path: Path, cell: Cell
) -> None:
    with pytest.raises(EngineError, match="the prefix cache is off"):
        LLM(str(checkpoints["llama"].path), device="cpu", **cell.settings(1536, tmp_path))
