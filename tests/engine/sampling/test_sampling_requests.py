"""Requests of samples: seeds, stops, log-probabilities, and the same tokens whatever runs beside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_answers import ByteTokenizer, hold_blocks, ragged_prompts, random_prompts, small_llm
from small_models import Checkpoint

from kvplan_engine import LLM, EngineError, RequestOutput, SamplingParams
from kvplan_engine.requests.detokenizer import Detokenizer, answer_text

VOCAB = 384


def make_llm(checkpoint: Checkpoint, **settings: Any) -> LLM:
    settings = {"max_num_batched_tokens": 48, "max_num_seqs": 8, "block_size": 8, **settings}
    llm = small_llm(checkpoint.path, **settings)
    hold_blocks(llm, 256)  # each step is followed by a check of every block
    return llm


def prompts(*lengths: int) -> list[dict[str, Any]]:
    return [{"prompt_token_ids": prompt} for prompt in random_prompts(*lengths, seed=7)]


def tokens_of(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def test_a_seed_decides_the_tokens_whatever_else_runs(checkpoints: dict[str, Checkpoint]) -> None:
    """Alone, among others, in chunks, with a pool that preempts, with and without a prefix cache: the same tokens."""
    wanted = prompts(20, 33, 5)
    params = [
        SamplingParams(seed=11, max_tokens=24, ignore_eos=True, top_p=0.9, temperature=1.5),
        SamplingParams(seed=12, max_tokens=24, ignore_eos=True, n=3),
        SamplingParams(seed=11, max_tokens=24, ignore_eos=True, frequency_penalty=0.5),
    ]
    others = prompts(40, 9, 17, 30)
    llm = make_llm(checkpoints["llama"])
    hold_blocks(llm, 120)
    alone = [tokens_of(llm.generate(prompt, one))[0] for prompt, one in zip(wanted, params, strict=True)]
    assert len({tuple(sample) for sample in alone[1]}) == 3, "samples of one prompt are the same"
    assert tokens_of(llm.generate(wanted, params)) == alone
    noise = SamplingParams(max_tokens=20, ignore_eos=True)
    mixed = llm.generate([*others, *wanted], [noise] * len(others) + params)
    assert tokens_of(mixed[len(others) :]) == alone
    llm.engine.reconfigure(max_num_batched_tokens=16, max_model_len=64, enable_prefix_caching=False)
    hold_blocks(llm, 16)
    assert tokens_of(llm.generate(wanted, params)) == alone
    assert llm.get_stats()["num_preemptions"] > 0


def test_without_a_seed_each_sample_differs_and_an_engine_repeats_itself(checkpoints: dict[str, Checkpoint]) -> None:
    (prompt,) = prompts(12)
    llm = make_llm(checkpoints["gpt2"])
    (output,) = llm.generate(prompt, SamplingParams(n=6, max_tokens=12, ignore_eos=True))
    assert [completion.index for completion in output.outputs] == list(range(6))
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 6


def test_logprobs_are_the_models(checkpoints: dict[str, Checkpoint]) -> None:
    checkpoint = checkpoints["qwen2"]
    (prompt,) = prompts(10)
    llm = make_llm(checkpoint)
    (output,) = llm.generate(prompt, SamplingParams(seed=0, temperature=0.6, max_tokens=8, logprobs=4, ignore_eos=True))
    (completion,) = output.outputs
    ids = torch.tensor([prompt["prompt_token_ids"] + completion.token_ids])
    with torch.no_grad():
        raw = torch.log_softmax(checkpoint.model(ids).logits[0, 9:-1].float(), -1)
    assert completion.logprobs is not None
    total = 0.0
    for row, token, reported in zip(raw, completion.token_ids, completion.logprobs, strict=True):
        assert set(row.topk(4).indices.tolist()) | {token} == set(reported)
        for index, value in reported.items():
            assert value == pytest.approx(float(row[index]), abs=2e-4)
        total += float(row[token])
    assert completion.cumulative_logprob == pytest.approx(total, abs=1e-3)


def answer(llm: LLM, tokenizer: ByteTokenizer, prompt: dict[str, Any], params: SamplingParams) -> Any:
    """The completion of one prompt, with a tokenizer put into an engine whose checkpoint has none."""
    llm.engine._stops._tokenizer = tokenizer
    request = llm.engine.add_request("stop", prompt["prompt_token_ids"], params)
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    return request.sequences[0]


def test_stop_string_across_tokens_cuts_the_text(checkpoints: dict[str, Checkpoint]) -> None:
    llm = make_llm(checkpoints["llama"])
    (prompt,) = prompts(9)
    forced = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True}
    free = answer(llm, ByteTokenizer(), prompt, SamplingParams(**forced))
    text = answer_text(ByteTokenizer(), prompt["prompt_token_ids"], free.output_token_ids)
    stop = text[7:11]  # four characters: at least four tokens
    cut = text.index(stop)
    sequence = answer(llm, ByteTokenizer(), prompt, SamplingParams(**forced, stop=["never there", stop]))
    assert sequence.finish_reason.value == "stop"
    assert sequence.stop_match == stop
    assert sequence.detokenizer.text == text[:cut]
    assert sequence.num_output_tokens < 30
    num_tokens = sequence.num_output_tokens
    on_time = SamplingParams(**forced, stop=stop, min_tokens=num_tokens - 1)
    assert answer(llm, ByteTokenizer(), prompt, on_time).num_output_tokens == num_tokens
    early = SamplingParams(**forced, stop=stop, min_tokens=num_tokens)  # completed by a token that had to come anyway
    sequence = answer(llm, ByteTokenizer(), prompt, early)
    assert sequence.num_output_tokens > num_tokens
    assert sequence.detokenizer.text.startswith(text[: cut + len(stop)])


def test_stop_token_ends_without_being_text(checkpoints: dict[str, Checkpoint]) -> None:
    llm = make_llm(checkpoints["llama"])
    (prompt,) = prompts(9)
    (free,) = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
    tokens = free.outputs[0].token_ids
    stop = tokens[6]
    first = tokens.index(stop)
    (output,) = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=[stop]))
    (completion,) = output.outputs
    assert completion.token_ids == tokens[: first + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    (held,) = llm.generate(
        prompt, SamplingParams(temperature=0.0, max_tokens=20, min_tokens=15, stop_token_ids=[stop], ignore_eos=True)
    )
    assert stop not in held.outputs[0].token_ids[:15]


@pytest.mark.parametrize(
    "text", ["plain", "naïve café", "世界 🌍🚀 \N{WAVING WHITE FLAG}\ufe0f\u200d🌈", "a\ufffdb", "🌍"]
)
def test_pieces_make_up_the_text(text: str) -> None:
    tokens = list(text.encode())
    for context in ([], list("é…".encode()), [0xF0, 0x9F]):
        detokenizer = Detokenizer(ByteTokenizer(), context)
        pieces = [detokenizer.add(token) for token in tokens]
        pieces.append(detokenizer.flush())
        assert "".join(pieces) == detokenizer.text == text
        assert answer_text(ByteTokenizer(), context, tokens) == text


def test_bytes_that_are_no_text_are_not_held_back_for_ever() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), [65])
    for _ in range(100):
        detokenizer.add(0x80)
    assert len(detokenizer.text) > 90


def test_a_token_costs_the_same_at_any_length_of_the_answer() -> None:
    tokenizer = ByteTokenizer()
    detokenizer = Detokenizer(tokenizer, [65] * 1000)
    costs = []
    for index in range(3000):
        before = tokenizer.num_decoded
        piece = detokenizer.add(65 + index % 20)
        detokenizer.find_stop(piece, ("stop here", "or there"))
        costs.append(tokenizer.num_decoded - before)
        assert len(detokenizer._tail) < len("stop here")
    assert max(costs[10:]) == costs[10] <= 12


def test_the_stop_string_that_begins_first_wins() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), [])
    found = None
    for token in b"one two three":
        found = found or detokenizer.find_stop(detokenizer.add(token), ("three", "two t", "o three"))
    assert found == "two t"
    assert detokenizer.text == "one "


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {1: 101}}, "logit_bias"),
        ({"stop": ["x", ""]}, "stop string"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"n": 0}, "n must"),
    ],
)
def test_bad_values_are_named(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(EngineError, match=word):
        SamplingParams(**settings)


def test_tokens_outside_the_vocabulary_are_named(checkpoints: dict[str, Checkpoint]) -> None:
    llm = make_llm(checkpoints["gpt2"])
    (prompt,) = prompts(4)
    for params in (
        SamplingParams(logit_bias={VOCAB: 1.0}),
        SamplingParams(stop_token_ids=[-1]),
        SamplingParams(logprobs=VOCAB + 1),
    ):
        with pytest.raises(EngineError, match=r"vocabulary|tokens there are"):
            llm.generate(prompt, params)
        assert not llm.engine.has_unfinished_requests()


NUM_TOKENS = 10
PIECES: dict[str, dict[str, object]] = {
    "whole": {"max_num_batched_tokens": 2048, "enable_prefix_caching": False},
    "budget": {"max_num_batched_tokens": 24, "enable_prefix_caching": False},
    "cached": {"max_num_batched_tokens": 2048, "enable_prefix_caching": True, "block_size": 8},
}


def answers(llm: LLM, params: list[SamplingParams], *, alone: bool) -> list[list[int]]:
    prompts = [{"prompt_token_ids": prompt} for prompt in ragged_prompts()]
    if alone:
        outputs = [llm.generate([prompt], [own])[0] for prompt, own in zip(prompts, params, strict=True)]
    else:
        outputs = llm.generate(prompts, params)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize(
    ("dtype", "pieces", "temperature"),
    [
        ("float32", "whole", 0.9),
        ("float32", "budget", 0.0),
        ("float32", "budget", 0.9),
        ("float32", "cached", 0.9),
        ("bfloat16", "whole", 0.9),
    ],
)
def test_a_request_gets_the_same_tokens_whatever_runs_beside_it(
    checkpoints: dict[str, Checkpoint], dtype: str, pieces: str, temperature: float
) -> None:
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=NUM_TOKENS, ignore_eos=True) for seed in range(6)
    ]
    with small_llm(checkpoints["llama"].path, dtype=dtype, max_model_len=96, **PIECES["whole"]) as llm:
        wanted = answers(llm, params, alone=True)
        assert answers(llm, params, alone=True) == wanted
        llm.engine.reconfigure(**PIECES[pieces])
        for _ in range(2):  # the second time from the cache, where there is one
            assert answers(llm, params, alone=False) == wanted
        hits = llm.get_stats()["prefix_cache_hits"]
    assert (hits > 0) == (pieces == "cached")
