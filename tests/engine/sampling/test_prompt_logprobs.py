"""Log-probabilities of prompts: transformers' own, however a prompt is cut, cached, preempted or batched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_answers import shrink_pool, small_llm
from small_models import ARCHITECTURES, VOCAB_SIZE, Checkpoint

from kvplan_engine import LLM, EngineError, RequestOutput, SamplingParams

NUM_TOP = 3
ASKED = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, prompt_logprobs=NUM_TOP)
PLAIN = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def make_llm(checkpoint: Checkpoint, **settings: Any) -> LLM:
    settings = {"max_num_batched_tokens": 24, "max_num_seqs": 8, "block_size": 8, **settings}
    llm = small_llm(checkpoint.path, **settings)
    shrink_pool(llm, num_tokens=2048)  # each step is followed by a check of every block
    return llm


def prompt_of(length: int, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {"prompt_token_ids": torch.randint(1, VOCAB_SIZE, (length,), generator=generator).tolist()}


def check(checkpoint: Checkpoint, output: RequestOutput, num_top: int = NUM_TOP) -> None:
    """Each token's log-probability and its alternatives' are those of a log-softmax in float32."""
    token_ids, reported = output.prompt_token_ids, output.prompt_logprobs
    assert reported is not None
    assert len(reported) == len(token_ids)
    assert reported[0] is None
    with torch.no_grad():
        expected = torch.log_softmax(checkpoint.model(torch.tensor([token_ids])).logits[0].float(), -1)
    for row, token, values in zip(expected, token_ids[1:], reported[1:], strict=False):
        assert values is not None
        assert set(values) == {token, *row.topk(num_top).indices.tolist()}
        assert next(iter(values)) == token
        for index, value in values.items():
            assert value == pytest.approx(float(row[index]), abs=3e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_they_are_the_models(checkpoints: dict[str, Checkpoint], name: str) -> None:
    """In chunks of at most 24 tokens, beside sequences that decode and prompts that ask for nothing."""
    with make_llm(checkpoints[name]) as llm:
        prompts = [prompt_of(length, length) for length in (60, 1, 2, 30, 40)]
        outputs = llm.generate(prompts, [ASKED, ASKED, ASKED, PLAIN, ASKED])
        alone = llm.generate(prompts, PLAIN)
    for number in (0, 1, 2, 4):
        check(checkpoints[name], outputs[number])
    assert outputs[3].prompt_logprobs is None
    for output, plain in zip(outputs, alone, strict=True):
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids


@pytest.mark.parametrize("settings", [
    {"attention_backend": "reference"}, {"async_scheduling": True}, {"max_num_batched_tokens": 512},
    {"max_num_batched_tokens": 8, "max_num_seqs": 3}, {"max_num_seqs": 1},
], ids=str)  # fmt: skip
def test_settings_do_not_change_them(checkpoints: dict[str, Checkpoint], settings: dict[str, Any]) -> None:
    checkpoint = checkpoints["llama"]
    with make_llm(checkpoint, **settings) as llm:
        for output in llm.generate([prompt_of(50), prompt_of(17, 1), prompt_of(9, 2)], ASKED):
            check(checkpoint, output)


def test_a_prompt_that_asks_is_computed_though_it_is_cached(checkpoints: dict[str, Checkpoint]) -> None:
    """As in vLLM: it does not look into the prefix cache, nor count as a look-up; others find its blocks."""
    checkpoint = checkpoints["llama"]
    with make_llm(checkpoint) as llm:
        prompt = prompt_of(40)
        llm.generate(prompt, PLAIN)
        queried = llm.get_stats()["prefix_cache_queries"]
        (output,) = llm.generate(prompt, ASKED)
        assert output.num_cached_tokens == 0
        assert llm.get_stats()["prefix_cache_queries"] == queried
        check(checkpoint, output)
        (plain,) = llm.generate(prompt, PLAIN)
        assert plain.num_cached_tokens == 32


@pytest.mark.parametrize("settings", [{}, {"swap_space": "4MiB", "preemption_mode": "swap"}], ids=["recompute", "swap"])
def test_they_outlive_preemptions(checkpoints: dict[str, Checkpoint], settings: dict[str, Any]) -> None:
    """What was gathered before stays, and what is computed again is not gathered twice."""
    checkpoint = checkpoints["llama"]
    asked = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, prompt_logprobs=NUM_TOP)
    with make_llm(checkpoint, max_model_len=96, **settings) as llm:
        shrink_pool(llm, 104)
        outputs = llm.generate([prompt_of(length, length) for length in (20, 50, 33)], asked)
        assert llm.get_stats()["num_preemptions"] > 0
    for output in outputs:
        check(checkpoint, output)


def test_samples_share_them_and_none_are_asked_of_the_answer(checkpoints: dict[str, Checkpoint]) -> None:
    checkpoint = checkpoints["llama"]
    params = SamplingParams(n=3, seed=5, max_tokens=4, ignore_eos=True, prompt_logprobs=0)
    with make_llm(checkpoint) as llm:
        (output,) = llm.generate(prompt_of(20), params)
    check(checkpoint, output, num_top=0)
    assert [completion.logprobs for completion in output.outputs] == [None] * 3


@pytest.mark.parametrize(("number", "says"), [(-1, "must not be negative"), (VOCAB_SIZE + 1, "more than the 384")])
def test_a_number_out_of_range_is_said(checkpoints: dict[str, Checkpoint], number: int, says: str) -> None:
    with make_llm(checkpoints["llama"]) as llm, pytest.raises(EngineError, match=says):
        llm.generate(prompt_of(3), SamplingParams(prompt_logprobs=number))
