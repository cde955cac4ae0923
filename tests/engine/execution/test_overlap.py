"""Steps started before the tokens of the last one are read: the same answers, on the CPU device, token for token.

Inputs whose values the host has not processed yet come from where the step before chose them.
"""

from __future__ import annotations

from itertools import product

import pytest
from covering import covering_part
from engine_answers import NUM_TOKENS, ByteTokenizer, answer, answers_with_text, ragged_prompts, shrink_pool, small_llm
from small_models import ARCHITECTURES, Checkpoint

from kvplan_engine import LLM, BeamSearchParams, SamplingParams
from kvplan_engine.requests.detokenizer import answer_text


def start(checkpoint: Checkpoint, **settings: object) -> LLM:
    defaults = {"max_num_batched_tokens": 48, "max_num_seqs": 4, "block_size": 8, "async_scheduling": True}
    return small_llm(checkpoint.path, **defaults | settings)


def greedy_params(num_tokens: int = NUM_TOKENS, **settings: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=num_tokens, **({"ignore_eos": True} | settings))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "block_size", "prefix_caching"), covering_part(product(ARCHITECTURES, (1, 8, 16, 32), (False, True)))
)
def test_ragged_batches_answer_as_without(
    checkpoints: dict[str, Checkpoint],
    expected_tokens: dict[str, list[list[int]]],
    name: str,
    block_size: int,
    prefix_caching: bool,
) -> None:
    """More prompts than may run, chunked prompts, prefill and decode in one step; twice, with cached blocks or not."""
    llm = start(checkpoints[name], block_size=block_size, enable_prefix_caching=prefix_caching)
    shrink_pool(llm, num_tokens=1024)
    assert answer(llm, ragged_prompts(), NUM_TOKENS) == expected_tokens[name]
    assert answer(llm, ragged_prompts(), NUM_TOKENS) == expected_tokens[name]
    stats = llm.get_stats()
    assert stats["num_steps_ahead"] > 0.9 * stats["num_steps"] - 2
    assert (stats["prefix_cache_hits"] > 0) == prefix_caching
    assert stats["num_free_blocks"] == stats["num_blocks"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "block_size", "swap_space"), covering_part(product(("gpt2", "mistral", "qwen3"), (1, 8), (0, "16MiB")))
)
def test_sequences_that_are_preempted_with_a_token_on_its_way(
    checkpoints: dict[str, Checkpoint],
    expected_tokens: dict[str, list[list[int]]],
    name: str,
    block_size: int,
    swap_space: object,
) -> None:
    mode = "swap" if swap_space else "recompute"
    settings = {"max_num_batched_tokens": 64, "max_num_seqs": 6, "max_model_len": 96, "block_size": block_size}
    llm = start(checkpoints[name], **settings, swap_space=swap_space, preemption_mode=mode)
    shrink_pool(llm, num_tokens=128)
    assert answer(llm, ragged_prompts(), NUM_TOKENS) == expected_tokens[name]
    stats = llm.get_stats()
    assert stats["num_preemptions"] > 0
    assert (stats["num_swaps"] > 0) == bool(swap_space)
    assert stats["num_steps_ahead"] > 0
    assert stats["num_free_blocks"] == stats["num_blocks"]


def test_a_stop_token_ends_an_answer_although_one_token_more_was_computed(
    checkpoints: dict[str, Checkpoint], expected_tokens: dict[str, list[list[int]]]
) -> None:
    """Each prompt stops at its own fifth token; the next prompts take the blocks and rows that become free."""
    llm, wanted = start(checkpoints["llama"]), expected_tokens["llama"]
    stops = [next(token for place, token in enumerate(one) if place >= 4) for one in wanted]
    params = [greedy_params(stop_token_ids=[stop]) for stop in stops]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in ragged_prompts()], params)
    for output, one, stop in zip(outputs, wanted, stops, strict=True):
        assert output.outputs[0].token_ids == one[: one.index(stop) + 1]
        assert output.outputs[0].finish_reason == "stop"
    stats = llm.get_stats()
    assert stats["num_free_blocks"] == stats["num_blocks"]
    assert stats["num_steps_ahead"] > 0


@pytest.mark.parametrize(("pool_tokens", "what_happens"), [(128, "num_preemptions"), (512, "prefix_cache_hits")])
def test_a_stop_string_cuts_an_answer_although_one_token_more_was_computed(
    checkpoints: dict[str, Checkpoint],
    expected_tokens: dict[str, list[list[int]]],
    pool_tokens: int,
    what_happens: str,
) -> None:
    """Twice: with cached blocks, or in a pool so small that sequences are preempted. Every step runs ahead."""
    prompts, tokenizer, params = ragged_prompts(), ByteTokenizer(), []
    for prompt, tokens in zip(prompts, expected_tokens["llama"], strict=True):
        text = answer_text(tokenizer, prompt, tokens)
        params.append(greedy_params(stop=["never there", text[7:10]]))
    waiting = start(checkpoints["llama"], async_scheduling=False)
    wanted = answers_with_text(waiting, prompts, params)
    assert {answer[1].value for answer in wanted} == {"stop"}
    assert all(len(answer[0]) < NUM_TOKENS for answer in wanted)
    llm = start(checkpoints["llama"], enable_prefix_caching=True, max_model_len=96)
    shrink_pool(llm, num_tokens=pool_tokens)
    for _ in range(2):
        assert answers_with_text(llm, prompts, params) == wanted
    stats = llm.get_stats()
    assert stats["num_free_blocks"] == stats["num_blocks"]
    assert stats[what_happens] > 0
    assert stats["num_steps_ahead"] >= stats["num_steps"] - 2 > 20
    assert waiting.get_stats()["num_steps_ahead"] == 0


@pytest.mark.slow
def test_a_request_aborted_with_a_token_on_its_way_leaves_the_others_alone(
    checkpoints: dict[str, Checkpoint], expected_tokens: dict[str, list[list[int]]]
) -> None:
    llm, prompts, wanted = start(checkpoints["gpt2"]), ragged_prompts(), expected_tokens["gpt2"]
    engine = llm.engine
    requests = [engine.add_request(f"r{i}", prompt, greedy_params()) for i, prompt in enumerate(prompts)]
    for _ in range(4):
        engine.step()
    assert requests[0].sequences[0].num_pending_tokens == 1
    engine.abort("r0")
    while engine.has_unfinished_requests():
        engine.step()
    got = [request.sequences[0].output_token_ids for request in requests]
    assert got[1:] == wanted[1:]
    assert got[0] == wanted[0][: len(got[0])] and len(got[0]) < NUM_TOKENS
    # the step that was under way when the last one ended brings nothing to anybody
    assert list(engine.step()) == []
    assert answer(llm, prompts[:2], NUM_TOKENS) == wanted[:2]


def test_every_token_is_reported_once(
    checkpoints: dict[str, Checkpoint], expected_tokens: dict[str, list[list[int]]]
) -> None:
    engine = start(checkpoints["qwen2"]).engine
    for number, prompt in enumerate(ragged_prompts()):
        engine.add_request(f"r{number}", prompt, greedy_params())
    reported: dict[str, list[int]] = {}
    finished: list[str] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            reported.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finished:
                finished.append(output.request_id)
    assert [reported[f"r{number}"] for number in range(len(reported))] == expected_tokens["qwen2"]
    assert sorted(finished) == sorted(reported)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.3},
        {"logprobs": 2},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 1.0, "n": 3, "seed": 5},
        {"n": 2},
        {"min_tokens": 6, "stop_token_ids": list(range(1, 384, 2))},
        {"logit_bias": {7: 3.0}},
    ],
    ids=str,
)
def test_what_depends_on_values_is_the_same(checkpoints: dict[str, Checkpoint], settings: dict) -> None:
    """Beside plain greedy requests that come and go; some of these make every step wait, and the answers are equal."""
    params = [SamplingParams(**({"temperature": 0.0, "max_tokens": 9} | settings)), greedy_params(5), greedy_params(14)]
    prompts = [{"prompt_token_ids": prompt} for prompt in ragged_prompts()[1:4]]

    def tokens(ahead: bool) -> list[list[list[int]]]:
        outputs = start(checkpoints["llama"], max_num_seqs=6, async_scheduling=ahead).generate(prompts, params)
        return [[answer.token_ids for answer in output.outputs] for output in outputs]

    assert tokens(True) == tokens(False)


def test_a_search_beside_greedy_requests(checkpoints: dict[str, Checkpoint]) -> None:
    """While it runs, every step waits for its tokens, and the stats say so."""
    llm = start(checkpoints["llama"], max_num_seqs=8)
    prompt = ragged_prompts()[1]
    alone = llm.beam_search([{"prompt_token_ids": prompt}], BeamSearchParams(beam_width=3, max_tokens=8))
    stats = llm.get_stats()
    assert stats["num_steps_ahead"] <= 1 < stats["num_steps"]
    engine = llm.engine
    request = engine.add_request("greedy", prompt, greedy_params())
    for _ in range(4):
        engine.step()
    search = engine.add_beam_search("search", prompt, BeamSearchParams(beam_width=3, max_tokens=8))
    while engine.has_unfinished_requests():
        engine.step()
    assert search.beams is not None
    assert [found.tokens for found in search.beams.finished] == [found.tokens for found in alone[0].sequences]
    assert (
        request.sequences[0].output_token_ids
        == start(checkpoints["llama"]).generate([{"prompt_token_ids": prompt}], greedy_params())[0].outputs[0].token_ids
    )
