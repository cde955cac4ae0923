"""With drafts the tokens are those without: greedy ones transformers', all others the same engine's, one by one.

The drafts come from a proposer that knows the answer and is right half of the time, so that every number of them is
accepted and rejected; n-grams are beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from beam_reference import END_TOKENS
from covering import covering_part
from dense_models import DenseCheckpoint
from engine_answers import answer, answers_with_text, ragged_prompts, shrink, small_llm
from guessing import LIMITS, NGRAM, Guesses, let_guess, prompts
from matrix_cells import CELLS, Cell, Watch, check_drafted, check_in_turn, set_up
from small_models import ARCHITECTURES, STATES, VOCAB_SIZE, WINDOWED, Checkpoint, greedy

from kvplan_engine import LLM, BeamSearchParams, EngineError, SamplingParams
from kvplan_engine.requests.request import number_sequences_from

NUM_TOKENS = 30  # over the end of mistral's window
POOL_TOKENS = 96
GRID = covering_part(
    [(name, cell) for name in ARCHITECTURES for cell in CELLS], strength=2, values_of=lambda c: (c[0], *c[1].values)
)


def load(path: Path, **settings: Any) -> LLM:
    return small_llm(path, **LIMITS | {"speculative_config": NGRAM} | settings)


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Checkpoint]) -> dict[str, list[list[int]]]:
    return {name: greedy(checkpoints[name].model, prompts(), NUM_TOKENS) for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def loaded() -> Iterator[dict[str, LLM]]:
    """Each model is loaded once; the cells are reconfigurations of it."""
    engines: dict[str, LLM] = {}
    yield engines
    for llm in engines.values():
        llm.close()


@pytest.mark.parametrize(("name", "cell"), GRID, ids=str)
def test_greedy_tokens_are_those_of_transformers(
    checkpoints: dict[str, Checkpoint],
    expected: dict[str, list[list[int]]],
    loaded: dict[str, LLM],
    tmp_path: Path,
    name: str,
    cell: Cell,
) -> None:
    if name not in loaded:
        loaded[name] = load(checkpoints[name].path)
    llm, want = loaded[name], expected[name]
    set_up(llm, cell, tmp_path, pool_tokens=POOL_TOKENS)
    texts = [prompt + tokens for prompt, tokens in zip(prompts(), want, strict=True)]
    watch = Watch(llm.engine)
    let_guess(llm, Guesses(texts, VOCAB_SIZE, share=0.6))
    check_in_turn(llm, watch, cell, prompts(), want)
    check_drafted(llm)


@pytest.mark.parametrize("name", ["gemma3", "exaone4"])
def test_windows_keep_what_rejected_drafts_were_written_over(tmp_path: Path, name: str) -> None:
    checkpoint = DenseCheckpoint(name, tmp_path, WINDOWED)
    with load(checkpoint.path, block_size=4, max_num_batched_tokens=16, max_num_seqs=3) as llm:
        shrink(llm, 2.0)
        want = greedy(checkpoint.model, prompts(), NUM_TOKENS)
        let_guess(llm, Guesses([p + a for p, a in zip(prompts(), want, strict=True)], VOCAB_SIZE, share=0.5))
        assert answer(llm, prompts(), NUM_TOKENS) == want
        assert llm.get_stats()["spec_decode_num_accepted_tokens"] > 0


def test_a_model_with_states_is_refused_in_one_sentence(tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint("qwen3_5", tmp_path, STATES)
    with pytest.raises(EngineError, match="speculative_config does not go with a model that keeps states"):
        load(checkpoint.path)


@pytest.mark.parametrize("settings", [{"kv_reservation": "contiguous"}, {"scheduling": "static"}, {"block_size": 1}])
def test_baselines_give_the_same_tokens(
    checkpoints: dict[str, Checkpoint], expected: dict[str, list[list[int]]], settings: dict[str, Any]
) -> None:
    with load(checkpoints["qwen2"].path, **settings) as llm:
        want = expected["qwen2"]
        let_guess(llm, Guesses([p + a for p, a in zip(prompts(), want, strict=True)], VOCAB_SIZE, share=0.7))
        assert answer(llm, prompts(), NUM_TOKENS) == want


PARAMS = {
    "seeded": SamplingParams(max_tokens=24, temperature=0.9, seed=5, ignore_eos=True),
    "not seeded": SamplingParams(max_tokens=24, temperature=0.7, top_k=40, ignore_eos=True),
    "truncated": SamplingParams(max_tokens=24, temperature=1.1, top_p=0.8, min_p=0.02, seed=1, ignore_eos=True),
    "penalties": SamplingParams(
        max_tokens=24,
        temperature=0.0,
        repetition_penalty=1.3,
        presence_penalty=0.7,
        frequency_penalty=0.5,
        ignore_eos=True,
    ),
    "drawn with penalties": SamplingParams(max_tokens=24, seed=2, frequency_penalty=1.0, logit_bias={5: 3.0}),
    "log-probabilities": SamplingParams(max_tokens=24, temperature=0.0, logprobs=2, ignore_eos=True),
    "their own and the prompt's": SamplingParams(max_tokens=9, seed=3, logprobs=1, prompt_logprobs=1),
    "a least length": SamplingParams(max_tokens=24, min_tokens=12, temperature=0.8, seed=4),
    "a stop token": SamplingParams(max_tokens=24, temperature=0.0, stop_token_ids=list(range(0, VOCAB_SIZE, 11))),
    "a stop string": SamplingParams(max_tokens=24, temperature=0.0, stop=[chr(c) for c in range(32, 64)]),
}


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_every_way_to_choose_gives_the_tokens_that_it_gives_alone(
    checkpoints: dict[str, Checkpoint], params: SamplingParams
) -> None:
    with load(checkpoints["llama"].path, max_num_batched_tokens=64, max_num_seqs=4) as llm:
        llm.engine.model.config = replace(llm.engine.model.config, eos_token_ids=END_TOKENS)
        asked = [*prompts(), prompts()[0]]
        llm.engine.reconfigure(speculative_config=None)
        number_sequences_from(1000)  # what requests without a seed are drawn from
        want = answers_with_text(llm, asked, [params] * len(asked))
        llm.engine.reconfigure(speculative_config=NGRAM)
        texts = [prompt + found[0] for prompt, found in zip(asked, want, strict=True)]
        let_guess(llm, Guesses(texts, VOCAB_SIZE, share=0.6))
        number_sequences_from(1000)
        found = answers_with_text(llm, asked, [params] * len(asked))
        assert [each[:4] for each in found] == [each[:4] for each in want]
        for one, other in zip(found, want, strict=True):
            assert [list(each) for each in one[4]] == [list(each) for each in other[4]]
            near = [torch.tensor(list(each.values())) for each in one[4]]
            assert all(map(torch.allclose, near, [torch.tensor(list(each.values())) for each in other[4]]))
        assert llm.get_stats()["spec_decode_num_accepted_tokens"] > 0


def test_samples_and_beams_beside_drafts(checkpoints: dict[str, Checkpoint]) -> None:
    params = SamplingParams(n=3, max_tokens=16, seed=7, ignore_eos=True)
    beams = BeamSearchParams(beam_width=2, max_tokens=12)
    answers = []
    with load(checkpoints["gpt2"].path, block_size=8) as llm:
        for speculative in (None, NGRAM):
            llm.engine.reconfigure(speculative_config=speculative)
            if answers:
                texts = [prompts()[0] + tokens for tokens in answers[0][0]]
                let_guess(llm, Guesses(texts, VOCAB_SIZE, share=0.7))
            sampled = llm.engine.add_request("samples", prompts()[0], params)
            searched = llm.engine.add_beam_search("beams", prompts()[1], beams)
            while llm.engine.has_unfinished_requests():
                llm.engine.step()
            answers.append(([each.output_token_ids for each in sampled.sequences], searched.beams.finished))
        assert llm.get_stats()["spec_decode_num_accepted_tokens"] > 0
    assert answers[0][0] == answers[1][0]
    assert [each.tokens for each in answers[0][1]] == [each.tokens for each in answers[1][1]]


def test_ngrams_of_the_text_itself(
    checkpoints: dict[str, Checkpoint], expected_tokens: dict[str, list[list[int]]]
) -> None:
    """Without anybody who knows the answer: a prompt that repeats, more requests than run at once."""
    with load(checkpoints["llama-tied"].path, max_num_batched_tokens=48, max_num_seqs=2, block_size=8) as llm:
        found = answer(llm, ragged_prompts()[:4], len(expected_tokens["llama-tied"][0]))
        assert found == expected_tokens["llama-tied"][:4]
        repeating = [prompts()[0][:6] * 4]
        with_drafts = answer(llm, repeating, 40)
        stats = llm.get_stats()
        assert stats["spec_decode_num_draft_tokens"] > 0
        assert sum(stats["spec_decode_num_accepted_tokens_per_pos"]) == stats["spec_decode_num_accepted_tokens"]
        llm.engine.reconfigure(speculative_config=None)
        assert answer(llm, repeating, 40) == with_drafts
        assert "spec_decode_num_drafts" not in llm.get_stats()
