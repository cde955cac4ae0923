"""Tokens chosen by the kernel in a whole engine: the same eager, captured, ahead, on a late device, preempted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from engine_answers import ByteTokenizer, answers_with_text, hold_blocks, random_prompts
from fake_gpu import FakeGpu, take_gpu
from guessing import NGRAM, Guesses, let_guess
from late_gpu import LateGpu

from kvplan_engine import LLM, BeamSearchParams, SamplingParams

VOCABULARY = 96
LENGTHS = (1, 9, 30, 17, 5, 13, 26, 2, 11)
LIMITS = {"max_num_batched_tokens": 32, "max_num_seqs": 4, "max_model_len": 64, "block_size": 8}
SYNCHRONOUS = {"enforce_eager": True, "async_scheduling": False}
FEW_GRAPHS = {"cudagraph_mode": "full_decode_only"}
MODES = [SYNCHRONOUS, FEW_GRAPHS | {"async_scheduling": False}, {"enforce_eager": True}, {}]


def changed(**settings: object) -> SamplingParams:
    """Greedy, with changed logits: what the host's sampler decides in exactly the same way."""
    return SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True, **settings)  # type: ignore[arg-type]


PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True),
    SamplingParams(seed=1, max_tokens=12, ignore_eos=True),
    SamplingParams(seed=2, temperature=1.6, top_p=0.8, max_tokens=7, ignore_eos=True),
    SamplingParams(seed=3, top_k=9, min_p=0.05, n=3, max_tokens=6, ignore_eos=True),
    changed(repetition_penalty=1.9, frequency_penalty=0.3),
    SamplingParams(seed=4, presence_penalty=1.5, repetition_penalty=1.2, max_tokens=15, ignore_eos=True),
    SamplingParams(seed=5, logit_bias={7: 4.0, 8: 4.0, 9: -100.0}, top_p=0.9, max_tokens=8, ignore_eos=True),
    changed(presence_penalty=1.9, logit_bias={3: 2.5}),
    changed(min_tokens=6, stop_token_ids=list(range(0, VOCABULARY, 2))),
]
CHANGED = [index for index, params in enumerate(PARAMS) if params.is_greedy]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One layer with heads of 64, the smallest that the CUDA kernels have."""
    torch.manual_seed(4)
    config = transformers.GPT2Config(n_embd=64, n_head=1, n_layer=1, vocab_size=VOCABULARY, n_positions=64)
    config.initializer_range = 0.3
    folder = tmp_path_factory.mktemp("draws") / "gpt2"
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().save_pretrained(folder)
    return str(folder)


def prompts() -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": prompt} for prompt in random_prompts(*LENGTHS, end=VOCABULARY)]


def answers(llm: LLM, params: list[SamplingParams] = PARAMS) -> list[list[list[int]]]:
    outputs = llm.generate(prompts(), params)
    return [[sample.token_ids for sample in output.outputs] for output in outputs]


def start(path: str, **settings: object) -> LLM:
    return LLM(path, dtype="float32", enable_prefix_caching=False, **(LIMITS | settings))


@pytest.fixture(scope="module")
def wanted(path: str) -> list[list[list[int]]]:
    """One request after the other, each step launched and waited for."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        take_gpu(monkeypatch, FakeGpu())
        llm = start(path, **SYNCHRONOUS)
        outputs = [llm.generate([prompt], one)[0] for prompt, one in zip(prompts(), PARAMS, strict=True)]
    return [[sample.token_ids for sample in output.outputs] for output in outputs]


def test_changed_logits_give_the_tokens_of_the_cpu(path: str, wanted: list[list[list[int]]]) -> None:
    """Where nothing is random: penalties over what was said, a bias, no stop token before the minimum length."""
    llm = start(path, device="cpu", device_memory="512MiB")
    outputs = llm.generate([prompts()[index] for index in CHANGED], [PARAMS[index] for index in CHANGED])
    assert [[sample.token_ids for sample in output.outputs] for output in outputs] == [wanted[i] for i in CHANGED]
    plain = llm.generate([prompts()[index] for index in CHANGED], [PARAMS[0]] * len(CHANGED))
    same = [own.outputs[0].token_ids == one.outputs[0].token_ids[:9] for own, one in zip(plain, outputs, strict=True)]
    assert same == [True, False, False, False], "the changes matter"
    assert 6 <= len(wanted[-1][0]) < 14 and wanted[-1][0][-1] % 2 == 0


@pytest.mark.parametrize("settings", MODES, ids=str)
def test_mixed_batches_draw_what_each_would_alone(
    path: str, wanted: list[list[list[int]]], settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in pieces beside decoding rows, samples that fork, rows that end and rows that move."""
    gpu = take_gpu(monkeypatch, FakeGpu())
    llm = start(path, **settings)
    assert answers(llm) == wanted
    stats = llm.get_stats()
    assert (stats["num_graph_replays"] > 0) == ("enforce_eager" not in settings)
    assert stats["num_steps_ahead"] == (0 if "async_scheduling" in settings else stats["num_steps"] - 1)
    assert "argmax_rows" not in gpu.runtime.launched


def test_draws_on_a_late_device(path: str, wanted: list[list[list[int]]], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = take_gpu(monkeypatch, LateGpu())
    llm = start(path)
    with gpu.late(llm.engine):
        assert answers(llm) == wanted
    assert gpu.most_queued > 20, "nothing was late"


def test_preempted_sequences_draw_on(path: str, wanted: list[list[list[int]]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows and counts may be others' meanwhile."""
    take_gpu(monkeypatch, FakeGpu())
    llm = start(path, max_num_seqs=6, **FEW_GRAPHS)
    hold_blocks(llm, 9)
    assert answers(llm) == wanted
    stats = llm.get_stats()
    assert stats["num_preemptions"] > 3
    assert stats["num_steps_ahead"] > 0


def test_log_probabilities_are_read_beside_the_draws(
    path: str, wanted: list[list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that want them draw the same tokens, and so do those beside them; on a late device, a step ahead."""
    gpu = take_gpu(monkeypatch, LateGpu())
    llm = start(path, **FEW_GRAPHS)
    asking = {1: 2, 3: 0, 6: 4}
    params = [replace(one, logprobs=asking.get(index)) for index, one in enumerate(PARAMS)]
    with gpu.late(llm.engine):
        outputs = llm.generate(prompts(), params)
    assert [[sample.token_ids for sample in output.outputs] for output in outputs] == wanted
    assert llm.get_stats()["num_steps_ahead"] == llm.get_stats()["num_steps"] - 1
    llm.engine.reconfigure(**SYNCHRONOUS)
    again = llm.generate(prompts(), params)
    for one, other in zip(outputs, again, strict=True):
        for ahead, waited in zip(one.outputs, other.outputs, strict=True):
            assert ahead.logprobs == (waited.logprobs and [pytest.approx(each, abs=1e-4) for each in waited.logprobs])
    sample = outputs[1].outputs[0]
    assert sample.logprobs is not None and all(len(each) in (2, 3) for each in sample.logprobs)
    chosen = [of_token[token] for of_token, token in zip(sample.logprobs, sample.token_ids, strict=True)]
    assert sample.cumulative_logprob == pytest.approx(sum(chosen))
    assert all(value <= 0 for value in chosen) and len(set(chosen)) > 6


def test_stop_strings_end_random_answers_on_a_late_device(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them with log-probabilities, of which none is that of a token that was computed too far."""
    gpu = take_gpu(monkeypatch, LateGpu())
    llm = start(path, **FEW_GRAPHS, async_scheduling=False)
    some = [prompt["prompt_token_ids"] for prompt in prompts()[:3]]
    free = [replace(one, max_tokens=12, n=1) for one in PARAMS[1:4]]
    tokens = [answer[0] for answer in answers_with_text(llm, some, free)]
    stops = [ByteTokenizer().decode(one[4:6]) for one in tokens]
    params = [replace(one, stop=stop) for one, stop in zip(free, stops, strict=True)]
    params[1] = replace(params[1], logprobs=1)
    wanted = answers_with_text(llm, some, params)
    assert all(len(answer[0]) <= 6 and answer[2] == stop for answer, stop in zip(wanted, stops, strict=True))
    llm.engine.reconfigure(async_scheduling=None)
    with gpu.late(llm.engine):
        found = answers_with_text(llm, some, params)
    assert [answer[:4] for answer in found] == [answer[:4] for answer in wanted]
    assert found[1][4] == [pytest.approx(each, abs=1e-4) for each in wanted[1][4]] and len(found[1][4]) == len(
        found[1][0]
    )
    stats = llm.get_stats()
    assert stats["num_steps_ahead"] == stats["num_steps"] - 1
    assert stats["num_free_blocks"] == stats["num_blocks"]


def test_beams_and_log_probabilities_of_prompts_wait_on_a_late_device(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both depend on values that another step would overwrite; the answers are the CPU's."""
    beams = BeamSearchParams(beam_width=3, max_tokens=4)
    asking = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    some = prompts()[1:3]
    cpu = start(path, device="cpu", device_memory="512MiB")
    wanted = [[found.tokens for found in each.sequences] for each in cpu.beam_search(some, beams)]
    described = cpu.generate(some, asking)
    gpu = take_gpu(monkeypatch, LateGpu())
    llm = start(path, **FEW_GRAPHS)
    with gpu.late(llm.engine):
        assert [[found.tokens for found in each.sequences] for each in llm.beam_search(some, beams)] == wanted
        outputs = llm.generate(some, asking)
    for one, other in zip(outputs, described, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert one.outputs[0].logprobs == [pytest.approx(each, abs=1e-4) for each in other.outputs[0].logprobs or []]
        assert one.prompt_logprobs is not None and other.prompt_logprobs is not None
        assert one.prompt_logprobs[1:] == [pytest.approx(each, abs=1e-4) for each in other.prompt_logprobs[1:]]


@pytest.mark.parametrize("settings", [SYNCHRONOUS, {}], ids=["eager", "graphs"])
def test_drafts_are_verified_by_the_sampler(
    path: str, wanted: list[list[list[int]]], monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    """The likeliest tokens, with changed logits or without, are those that the kernel chooses one by one."""
    texts = [prompt["prompt_token_ids"] + answer[0] for prompt, answer in zip(prompts(), wanted, strict=True)]
    take_gpu(monkeypatch, FakeGpu())
    with start(path, speculative_config=NGRAM, **({} if not settings else {"enforce_eager": True})) as llm:
        let_guess(llm, Guesses(texts, VOCABULARY, share=0.6))
        found = answers(llm)
        assert llm.get_stats()["spec_decode_num_accepted_tokens"] > 0
    for index in (0, *CHANGED):
        assert found[index] == wanted[index]
