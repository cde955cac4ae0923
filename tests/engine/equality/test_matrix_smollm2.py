"""Trained weights and real text in every cell of the matrix: greedy answers and a search, beside each other.

The reference backend answers at one block size: at the others it does so in ``test_matrix``, on random weights. CI runs
a part: any two values of a cell's four axes meet on the CPU kernels. On the reference each occurs, and they meet in
``test_matrix``. `make exhaustive` runs all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from beam_reference import assert_same, reference
from covering import covering_part
from engine_answers import small_llm
from matrix_cells import CELLS as ALL_CELLS
from matrix_cells import Cell, Watch, add_beams, add_greedy, beam_answers, greedy_tokens, set_up
from rank_cases import TEXTS
from small_models import greedy

from kvplan_engine import LLM, BeamSearchParams

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]

PROMPT_LENGTHS = (36, 30)  # both fit the pool, whatever the block size, until the second crosses the end of a block
SEARCHED_TEXT = "Water boils at a lower temperature on a mountain than at the sea, because the pressure of the air"
NUM_TOKENS = 6
POOL_TOKENS = 68
BEAMS = BeamSearchParams(beam_width=3, max_tokens=5, length_penalty=0.8)
CELLS = {"cpu": ALL_CELLS, "reference": [cell for cell in ALL_CELLS if cell.block_size == 16]}


def cells_of(backend: str) -> list[Any]:
    """Parameters: the backend, and the cell."""
    cells = [(backend, cell) for cell in CELLS[backend]]
    return covering_part(cells, strength=2 if backend == "cpu" else 1, values_of=lambda each: each[1].values)


@dataclass(frozen=True, slots=True)
class Expected:
    """The prompts, and what transformers answers. searched: tokens and score of each beam, best first."""

    prompts: list[list[int]]
    searched_prompt: list[int]
    greedy: list[list[int]]
    searched: list[tuple[list[int], float]]


@pytest.fixture(scope="module")
def load(smollm2_path: Path) -> Iterator[Callable[[str], LLM]]:
    """The engine on a backend, loaded once; the cells are reconfigurations of it."""
    loaded: dict[str, LLM] = {}

    def load(backend: str) -> LLM:
        if backend not in loaded:
            limits = {"max_model_len": 64, "max_num_batched_tokens": 256, "max_num_seqs": 6, "device_memory": None}
            # plain torch would widen all weights in every step
            quantization = "none" if backend == "reference" else None
            loaded[backend] = small_llm(smollm2_path, attention_backend=backend, quantization=quantization, **limits)
        assert loaded[backend].engine.model.attention.name == backend
        return loaded[backend]

    yield load
    for llm in loaded.values():
        llm.engine.close()


@pytest.fixture(scope="module")
def expected(load: Callable[[str], LLM], smollm2_model: torch.nn.Module) -> Expected:
    llm = load("cpu")
    prompts = [llm.tokenizer.encode(text)[:length] for text, length in zip(TEXTS, PROMPT_LENGTHS, strict=True)]
    assert tuple(map(len, prompts)) == PROMPT_LENGTHS
    searched_prompt = llm.tokenizer.encode(SEARCHED_TEXT)
    end_tokens = llm.engine.model.config.eos_token_ids
    searched = reference(smollm2_model, searched_prompt, BEAMS, end_tokens)
    return Expected(prompts, searched_prompt, greedy(smollm2_model, prompts, NUM_TOKENS), searched)


@pytest.mark.parametrize(("backend", "cell"), [*cells_of("cpu"), *cells_of("reference")], ids=str)
def test_tokens_are_those_of_transformers(
    load: Callable[[str], LLM], expected: Expected, tmp_path: Path, backend: str, cell: Cell
) -> None:
    llm = load(backend)
    set_up(llm, cell, tmp_path, pool_tokens=POOL_TOKENS)
    watch = Watch(llm.engine)
    requests = add_greedy(llm.engine, expected.prompts, NUM_TOKENS)
    searches = add_beams(llm.engine, [expected.searched_prompt], BEAMS)
    watch.run()
    assert greedy_tokens(requests) == expected.greedy, f"{cell}: greedy"
    assert_same(beam_answers(searches)[0], expected.searched, f"{cell}: beams")
    if cell.prefix_caching:  # the search has pushed the first prompt out of the pool: into a tier, where there is one
        for _ in range(2):
            again = add_greedy(llm.engine, expected.prompts[:1], 2)
            watch.run()
            assert greedy_tokens(again) == [expected.greedy[0][:2]], f"{cell}: greedy again"
    watch.check(cell)
