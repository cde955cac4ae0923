"""Greedy tokens and blocks of every model over every grid of ranks and stages, beside those of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dense_models import DenseCheckpoint
from rank_cases import CELLS, RANDOM, SMOLLM2_SETTINGS, Asked, check_memory, load, real_text
from small_models import MIXTURES, Checkpoint

from kvplan_engine import LLM, EngineError
from sweeping import smollm2_gguf

Grid = tuple[int, int]
"""tensor_parallel_size and pipeline_parallel_size."""


@dataclass(frozen=True, slots=True)
class Case:
    """path: writes the model into a folder and returns where it is. asked: of the engine in one process."""

    name: str
    path: Callable[[Path], Path]
    grids: tuple[Grid, ...]
    settings: Mapping[str, Any]
    asked: Callable[[LLM], Asked]


@dataclass(frozen=True, slots=True)
class Row:
    """What one grid did. num_equal: greedy tokens that are those of one process. refusal: instead of all else.

    num_blocks: of each rank, as predicted. problem: what was not as it should be, "" for nothing.
    """

    model: str
    grid: Grid
    num_equal: int = 0
    num_tokens: int = 0
    num_blocks: int = 0
    refusal: str = ""
    problem: str = ""


_GRIDS: Final = ((2, 1), (4, 1), (1, 2), (2, 2))


def _plain(name: str) -> Callable[[Path], Path]:
    return lambda folder: Checkpoint(name, folder).path


CASES: Final = (
    Case("GPT-2, 4 heads", _plain("gpt2"), _GRIDS, {}, lambda _: RANDOM),
    Case("Llama, 4 heads, 2 KV heads", _plain("llama"), _GRIDS, {}, lambda _: RANDOM),
    Case(
        "Qwen2-MoE, 8 experts and a shared one",
        lambda folder: DenseCheckpoint("qwen2_moe", folder, MIXTURES).path,
        _GRIDS,
        {},
        lambda _: RANDOM,
    ),
    Case(
        "Qwen2-MoE, whole experts on a rank",
        lambda folder: DenseCheckpoint("qwen2_moe", folder, MIXTURES).path,
        ((2, 1), (4, 1), (2, 2)),
        {"enable_expert_parallel": True},
        lambda _: RANDOM,
    ),
    Case(
        "SmolLM2-135M on real text, 9 heads, 3 KV heads",
        lambda _: smollm2_gguf(),
        ((2, 1), (3, 1), (4, 1), (1, 2), (3, 2)),
        SMOLLM2_SETTINGS,
        real_text,
    ),
)


def check_case(case: Case, folder: Path) -> Iterator[Row]:
    """A row for each grid, as soon as it is there."""
    path = case.path(folder)
    with load(path, **case.settings) as llm:
        asked = case.asked(llm)
        expected = [asked.answers(llm, cell, folder) for cell in CELLS]
    for grid in case.grids:
        yield _check_grid(case, path, grid, asked, expected, folder)


def _check_grid(
    case: Case, path: Path, grid: Grid, asked: Asked, expected: list[dict[int, list[list[int]]]], folder: Path
) -> Row:
    try:
        llm = load(path, *grid, **case.settings)
    except EngineError as error:
        return Row(case.name, grid, refusal=str(error))
    try:
        with llm:
            pairs = [
                (token, wanted)
                for cell, answers in zip(CELLS, expected, strict=True)
                for number, answer in asked.answers(llm, cell, folder).items()
                for token, wanted in zip(_flat(answer), _flat(answers[number]), strict=True)
            ]
            num_equal = sum(token == wanted for token, wanted in pairs)
            problem = "" if num_equal == len(pairs) else f"{len(pairs) - num_equal} of {len(pairs)} tokens differ"
            return Row(case.name, grid, num_equal, len(pairs), check_memory(llm.engine), problem=problem)
    except AssertionError as error:
        return Row(case.name, grid, problem=f"not as expected: {error}" if str(error) else "bytes or blocks differ")


def _flat(answers: list[list[int]]) -> list[int]:
    return [token for answer in answers for token in answer]
