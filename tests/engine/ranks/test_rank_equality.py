"""Tokens of several ranks are those of one process: greedy ones are transformers', drawn ones a single engine's.

Over a pool too small for what is asked, so that sequences are preempted, swapped, cached and computed in chunks. Each
model is loaded once; what is tried are reconfigurations of it, as a user would make them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from dense_models import DenseCheckpoint
from guessing import NGRAM, Guesses, let_guess
from matrix_cells import add_greedy, greedy_tokens
from rank_cases import CELLS, RANDOM, check_memory, load
from small_models import MIXTURES, VOCAB_SIZE, Checkpoint, greedy

from kvplan_engine import Engine, EngineError, SamplingParams
from kvplan_engine.errors import RankDied
from kvplan_engine.execution.ranks.group import RankGroup

pytestmark = pytest.mark.xdist_group("ranks")

RANKS = {"gpt2": (2, 1), "llama": (4, 1), "llama-tied": (1, 2), "qwen2_moe": (2, 2)}
"""Ranks that share a layer, and stages. gpt2: fused queries, keys and values, stored transposed. llama: 2 KV heads for
4 ranks, biases. llama-tied: a head that is the embedding too, on both stages. qwen2_moe: experts, a shared one with a
gate, and a layer with an MLP.
"""


class Divided:
    """A model over several ranks, the same in one process, and transformers'."""

    def __init__(self, name: str, checkpoint: Checkpoint | DenseCheckpoint) -> None:
        self.model: torch.nn.Module = checkpoint.model
        self.single = load(checkpoint.path)
        self.ranks = load(checkpoint.path, *RANKS[name])


@pytest.fixture(scope="module", params=RANKS)
def divided(
    request: pytest.FixtureRequest, checkpoints: dict[str, Checkpoint], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Divided]:
    name = request.param
    found = checkpoints.get(name) or DenseCheckpoint(name, tmp_path_factory.mktemp("mixture"), MIXTURES)
    both = Divided(name, found)
    yield both
    both.ranks.close()
    both.single.close()


def test_whole_experts_on_each_rank(tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint("qwen2_moe", tmp_path, MIXTURES)
    with load(checkpoint.path, 2, enable_expert_parallel=True) as llm:
        expected = greedy(checkpoint.model, RANDOM.prompts, RANDOM.num_tokens)
        for cell in CELLS:
            for number, answers in RANDOM.answers(llm, cell, tmp_path).items():
                assert all(tokens == expected[number] for tokens in answers), f"{cell}: prompt {number}"
        assert check_memory(llm.engine) > 0


def test_greedy_tokens_are_those_of_transformers(divided: Divided, tmp_path: Path) -> None:
    expected = greedy(divided.model, RANDOM.prompts, RANDOM.num_tokens)
    for cell in CELLS:
        for number, answers in RANDOM.answers(divided.ranks, cell, tmp_path).items():
            assert all(tokens == expected[number] for tokens in answers), f"{cell}: prompt {number}"


def test_every_rank_takes_what_was_predicted(divided: Divided) -> None:
    """Bytes and blocks of each, of a planner that knows the config alone, and of an engine that only counts."""
    assert check_memory(divided.ranks.engine) > 0


def test_samples_that_fork_and_log_probabilities_are_those_of_one_process(divided: Divided) -> None:
    """Copies of shared blocks, evicted blocks in host memory, and the head for rows of prompts."""
    params = SamplingParams(n=3, temperature=0.9, seed=5, max_tokens=6, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    work: list[dict[str, list[int]]] = [{"prompt_token_ids": prompt} for prompt in RANDOM.prompts]
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


def test_drafts_are_verified_over_all_ranks(divided: Divided) -> None:
    """Several rows of a sequence go through each rank, in chunks and beside prompts, and so do their logits."""
    engine = divided.ranks.engine
    expected = greedy(divided.model, RANDOM.prompts, 16)
    engine.reconfigure(speculative_config=NGRAM, max_num_batched_tokens=48)
    texts = [prompt + answer for prompt, answer in zip(RANDOM.prompts, expected, strict=True)]
    let_guess(divided.ranks, Guesses(texts, VOCAB_SIZE, share=0.6))
    requests = add_greedy(engine, RANDOM.prompts, 16)
    while engine.has_unfinished_requests():
        engine.step()
    assert greedy_tokens(requests) == expected
    assert 0 < engine.draft_counts.num_accepted_tokens < engine.draft_counts.num_draft_tokens
    engine.reconfigure(speculative_config=None)


def test_no_rank_is_left_when_one_is_gone(divided: Divided, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last test of each model: all ranks end, and leave nothing behind."""
    ranks = divided.ranks.engine.ranks
    assert ranks is not None
    meeting = Path(ranks._meeting)
    assert meeting.exists()
    if ranks.num_ranks == 2 and divided.ranks.engine.config.pipeline_parallel_size == 2:
        check_that_others_end_with_the_first(divided.ranks.engine, ranks, monkeypatch)
    else:
        check_that_others_end_with_the_last(divided.ranks.engine, ranks)
    assert not meeting.parent.exists()


def check_that_others_end_with_the_first(engine: Engine, ranks: RankGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do so by themselves, and tidy up, also out of a collective that nobody ends: as NCCL's on a GPU may be."""
    told: list[object] = []
    with monkeypatch.context() as patch:
        tell = ranks.tell
        patch.setattr(ranks, "tell", lambda message: (told.append(message), tell(message)))
        add_greedy(engine, RANDOM.prompts, 12)
        engine.step()
    (connection,), (process,) = ranks._connections, ranks._processes
    ranks.tell(told[-1])  # a step in which this rank takes no part
    connection.close()  # as the system does for a process that was killed
    assert process.wait(60) == 0


def check_that_others_end_with_the_last(engine: Engine, ranks: RankGroup) -> None:
    """The one that was killed is named. A later step, and closing, are no worse than that."""
    pids = ranks.pids
    add_greedy(engine, RANDOM.prompts, 12)
    engine.step()
    os.kill(pids[-1], signal.SIGKILL)
    with pytest.raises(RankDied, match=f"rank {len(pids)} of {len(pids) + 1} was ended by SIGKILL") as caught:
        while engine.has_unfinished_requests():
            engine.step()
    assert caught.value.rank == len(pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(EngineError, match="the other ranks of this engine have ended"):
        engine.reconfigure(max_num_seqs=4)
