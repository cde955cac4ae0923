"""Tokens of several ranks are those of one process: greedy ones are transformers', drawn ones a single engine's.

Over a pool too small for what is asked, so that sequences are preempted, swapped, cached and computed in chunks. Each
model is loaded once; what is tried are reconfigurations of it, as a user would make them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matrix_cells import Cell, Watch, add_greedy, greedy_tokens, set_up
from mixture_models import MixtureCheckpoint
from small_models import Checkpoint, greedy

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.memory import EnginePrediction, predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.settings import ServingSettings
from kvplan.units import MIB
from kvplan_engine import LLM, Engine, EngineError, SamplingParams
from kvplan_engine.errors import RankDied
from kvplan_engine.memory.breakdown import MemoryBreakdown
from kvplan_engine.memory.ranks import Needs

pytestmark = pytest.mark.xdist_group("ranks")

CELLS = [
    Cell(prefix_caching=True, chunked=True, keeping="swap", block_size=16),
    Cell(prefix_caching=False, chunked=False, keeping="recompute", block_size=1),
]
NUM_TOKENS = 8
PROMPT_LENGTHS = (28, 41, 25)
POOL_TOKENS = 80
RANKS = {"gpt2": (2, 1), "llama": (4, 1), "llama-tied": (1, 2), "qwen2_moe": (2, 2)}
"""Ranks that share a layer, and stages. gpt2: fused queries, keys and values, stored transposed. llama: 2 KV heads for
4 ranks, biases. llama-tied: a head that is the embedding too, on both stages. qwen2_moe: experts, a shared one with a
gate, and a layer with an MLP.
"""


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(11)
    return [rng.integers(1, 384, length).tolist() for length in PROMPT_LENGTHS]


def load(path: Path, num_ranks: int = 1, num_stages: int = 1) -> LLM:
    return LLM(
        str(path),
        dtype="float32",
        device="cpu",
        device_memory="256MiB",
        max_num_batched_tokens=256,
        max_num_seqs=8,
        max_model_len=64,
        tensor_parallel_size=num_ranks,
        pipeline_parallel_size=num_stages,
    )


class Divided:
    """A model over several ranks, the same in one process, and transformers'."""

    def __init__(self, name: str, checkpoint: Checkpoint | MixtureCheckpoint) -> None:
        self.model: torch.nn.Module = checkpoint.model
        self.single = load(checkpoint.path)
        self.ranks = load(checkpoint.path, *RANKS[name])


@pytest.fixture(scope="module", params=RANKS)
def divided(
    request: pytest.FixtureRequest, checkpoints: dict[str, Checkpoint], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Divided]:
    name = request.param
    found = checkpoints.get(name) or MixtureCheckpoint(name, tmp_path_factory.mktemp("mixture"))
    both = Divided(name, found)
    yield both
    both.ranks.close()
    both.single.close()


def test_greedy_tokens_are_those_of_transformers(divided: Divided, tmp_path: Path) -> None:
    wanted, llm = prompts(), divided.ranks
    expected = greedy(divided.model, wanted, NUM_TOKENS)
    for cell in CELLS:
        set_up(llm, cell, tmp_path, pool_tokens=POOL_TOKENS)
        watch = Watch(llm.engine)
        for order in [(0, 1, 2), (0,), (1,), (1,)] if cell.prefix_caching else [(0, 1, 2)]:
            requests = add_greedy(llm.engine, [wanted[i] for i in order], NUM_TOKENS)
            watch.run()
            assert greedy_tokens(requests) == [expected[i] for i in order], f"{cell}: greedy"
        watch.check(cell)


def own_needs(memory: MemoryBreakdown) -> Needs:
    return Needs(memory.weight_bytes, memory.activation_bytes, memory.overhead_bytes, memory.block_bytes)


def test_every_rank_takes_what_was_predicted(divided: Divided) -> None:
    """Bytes and blocks of each, of a planner that knows the config alone, and of an engine that only counts."""
    engine = divided.ranks.engine
    engine.reconfigure(gpu_memory_utilization=0.8, max_num_batched_tokens=128, block_size=16, swap_space=0)
    memory, config = engine.memory, engine.config
    asked = ServingSettings(
        gpu_memory_utilization=0.8,
        max_num_batched_tokens=128,
        max_num_seqs=8,
        max_model_len=64,
        block_size=16,
        dtype="float32",
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
    )
    predicted = predict(resolve_model(config.model), asked, EngineDevice(256 * MIB))
    counted = Engine(replace(config, load_format="none")).memory
    found_by: list[EnginePrediction | MemoryBreakdown] = [predicted, counted]
    for found in found_by:
        assert found.num_blocks == memory.num_blocks
        assert found.block_bytes == memory.block_bytes
        assert found.weight_bytes == memory.weight_bytes
        assert found.activation_bytes == memory.activation_bytes
    assert memory.overhead_bytes == predicted.overhead_bytes, "a rank took more than is kept back"
    needs = [own_needs(memory), *engine._carver.needs]
    assert len(needs) == config.num_ranks
    assert memory.num_blocks == min(each.num_blocks(memory.budget_bytes) for each in needs)
    if config.pipeline_parallel_size == 1:
        assert len(set(needs)) == 1, "ranks that share every layer have equal parts"


def test_samples_that_fork_and_log_probabilities_are_those_of_one_process(divided: Divided) -> None:
    """Copies of shared blocks, evicted blocks in host memory, and the head for rows of prompts."""
    params = SamplingParams(n=3, temperature=0.9, seed=5, max_tokens=6, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    work: list[dict[str, list[int]]] = [{"prompt_token_ids": prompt} for prompt in prompts()]
    answers = []
    for llm in (divided.single, divided.ranks):
        llm.engine.reconfigure(max_num_batched_tokens=32, kv_host_cache_bytes=1 << 20, enable_prefix_caching=True)
        answers.append(llm.generate(work, params))
    for single, ranks in zip(*answers, strict=True):
        assert [each.token_ids for each in ranks.outputs] == [each.token_ids for each in single.outputs]
        for own, other in zip(ranks.outputs, single.outputs, strict=True):
            assert own.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-3)
        for own_row, other_row in zip(ranks.prompt_logprobs[1:], single.prompt_logprobs[1:], strict=True):
            assert own_row == pytest.approx(other_row, abs=1e-3)


def test_a_rank_that_is_killed_is_named_and_the_others_end(divided: Divided) -> None:
    """The last test of each model. A later step, and closing, are no worse than that."""
    engine = divided.ranks.engine
    pids = engine.ranks.pids
    add_greedy(engine, prompts(), 12)
    engine.step()
    os.kill(pids[-1], signal.SIGKILL)
    with pytest.raises(RankDied, match=f"rank {len(pids)} of {len(pids) + 1} was ended by SIGKILL") as caught:
        while engine.has_unfinished_requests():
            engine.step()
    assert caught.value.rank == len(pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(EngineError, match="the other ranks of this engine have ended"):
        engine.reconfigure(max_num_seqs=4)
