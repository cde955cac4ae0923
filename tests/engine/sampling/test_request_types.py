"""What is of the wrong type is one error before anything is queued; what other libraries call a number is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_answers import answer, ragged_prompts, shrink_pool, small_llm
from small_models import Checkpoint

from kvplan_engine import LLM, BeamSearchParams, EngineError, LoRARequest, SamplingParams

NAN, INFINITE = float("nan"), float("inf")
WHOLE = ("n", "top_k", "max_tokens", "min_tokens", "seed", "logprobs", "prompt_logprobs")
REAL = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
ODD: tuple[Any, ...] = (
    "1",
    b"1",
    True,
    False,
    [1],
    {},
    {"a": 1},
    object(),
    1j,
    NAN,
    INFINITE,
    -INFINITE,
    2**70,
    -(2**70),
)
NO_PROMPTS: tuple[Any, ...] = (
    None, 5, 1.5, b"text", object(), [None], [5], [["a"]], [b"a"], [1, 2, 3], {"prompt": None}, {"prompt": 5}, {},
    {"prompt_token_ids": 5}, {"prompt_token_ids": "12"}, {"prompt_token_ids": [1, "2"]}, {"prompt_token_ids": [1.5]},
    {"prompt_token_ids": [None]}, {"prompt_token_ids": [True]}, {"prompt_token_ids": [2**70]}, {"prompt_token_ids": []},
    {"prompt_token_ids": [[1]]}, {"prompt_token_ids": [1], "prompt": 5}, {"prompt_token_ids": np.ones(3)},
    {"prompt_token_ids": [-1]}, {"prompt_token_ids": [10**6]},
)  # fmt: skip


@pytest.fixture(scope="module")
def llm(checkpoints: dict[str, Checkpoint]) -> LLM:
    llm = small_llm(checkpoints["llama"].path, max_model_len=96)
    shrink_pool(llm, num_tokens=2048)  # each step is followed by a check of every block
    return llm


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name: str) -> None:
    for value in (*ODD, 2.5, 2.0, np.float32(2), np.ones(2, int), torch.ones(2), torch.tensor(2.0)):
        with pytest.raises(EngineError, match=name):
            SamplingParams(**{name: value})
    if name in ("n", "top_k", "max_tokens", "min_tokens"):
        with pytest.raises(EngineError, match=name):
            SamplingParams(**{name: None})  # type: ignore[arg-type]
    for value in (2, np.int64(2), np.uint8(2), torch.tensor(2)):
        kept = getattr(SamplingParams(**{name: value}), name)
        assert kept == 2
        assert type(kept) is int


@pytest.mark.parametrize("name", REAL)
def test_real_numbers(name: str) -> None:
    for value in (*(each for each in ODD if each != 2**70), None, 10**400, np.ones(2)):
        with pytest.raises(EngineError, match=name):
            SamplingParams(**{name: value})  # type: ignore[arg-type]
    for value in (1, 1.0, np.float32(1), np.float64(1)):
        kept = getattr(SamplingParams(**{name: value}), name)  # type: ignore[arg-type]
        assert kept == 1
        assert type(kept) is float


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ignore_eos", (1, 0, None, "yes", [])),
        ("stop", (5, b"x", [5], ["a", None], {"a": 1}, 2.5, "", ["a", ""])),
        ("stop_token_ids", (5, "5", ["5"], [2.5], [True], [None], {5: 1}, 2.5)),
        ("logit_bias", (5, [5], "5", {"5": 1}, {5: "1"}, {5: None}, {5: NAN}, {2.5: 1}, {True: 1}, {5: 101})),
    ],
)
def test_other_kinds(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(EngineError, match=name):
            SamplingParams(**{name: value})


def test_what_is_a_number_or_a_list_elsewhere_is_one_here() -> None:
    params = SamplingParams(
        stop=["a"],
        stop_token_ids=np.array([3, 4]),
        logit_bias={np.int64(5): np.float32(0.5)},  # type: ignore[arg-type]
    )
    assert params.stop_strings == ("a",)
    assert params.stop_token_ids == (3, 4)
    assert params.logit_bias == {5: 0.5}
    assert SamplingParams(stop_token_ids=None, logit_bias=None) == SamplingParams()  # type: ignore[arg-type]


def test_beams() -> None:
    for changed in ({"beam_width": 2.5}, {"beam_width": True}, {"max_tokens": "5"}, {"length_penalty": "1"}):
        with pytest.raises(EngineError, match=next(iter(changed))):
            BeamSearchParams(**changed)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="early_stopping"):
        BeamSearchParams(early_stopping=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("prompts", NO_PROMPTS, ids=range(len(NO_PROMPTS)))
def test_what_is_no_prompt_is_refused_beside_one_that_is(llm: LLM, prompts: Any) -> None:
    good = {"prompt_token_ids": [1, 2, 3]}
    calls: list[Any] = [prompts]
    if isinstance(prompts, dict):
        calls.append([good, prompts])
    for given in calls:
        for method in (llm.generate, llm.beam_search):
            with pytest.raises(EngineError):
                method(given)
    _check_nothing_is_queued(llm)


def test_one_of_something_else_for_each_prompt(llm: LLM) -> None:
    prompts = [{"prompt_token_ids": [1, 2, 3]}] * 2
    for params in (5, "x", {}, {"n": 2}, [SamplingParams()], [SamplingParams(), None], [{}, {}], BeamSearchParams()):
        with pytest.raises(EngineError, match="sampling parameters"):
            llm.generate(prompts, params)  # type: ignore[arg-type]
    for params in (5, {}, [BeamSearchParams()], SamplingParams()):
        with pytest.raises(EngineError, match="BeamSearchParams"):
            llm.beam_search(prompts, params)  # type: ignore[arg-type]
    for adapters in (5, "x", [None], ["a", "b"], [LoRARequest("a", "b")]):
        with pytest.raises(EngineError, match="adapters"):
            llm.generate(prompts, lora_request=adapters)  # type: ignore[arg-type]
    _check_nothing_is_queued(llm)


def test_ids_of_other_libraries_are_ids(llm: LLM, expected_tokens: dict[str, list[list[int]]]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    for convert in (np.array, torch.tensor, tuple):
        prompts = [{"prompt_token_ids": convert(prompt)} for prompt in ragged_prompts()]
        outputs = llm.generate(prompts, params)
        assert [output.outputs[0].token_ids for output in outputs] == expected_tokens["llama"]
        assert all(type(token) is int for output in outputs for token in output.prompt_token_ids)
    assert answer(llm, ragged_prompts(), 20) == expected_tokens["llama"]


@pytest.mark.parametrize("temperature", [1e-300, 1e39, 1e300])
def test_temperatures_beyond_float32(llm: LLM, temperature: float) -> None:
    (output,) = llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(temperature=temperature, seed=1))
    assert len(output.outputs[0].token_ids) > 0


def _check_nothing_is_queued(llm: LLM) -> None:
    assert not llm.engine.serving.requests
    assert not llm.engine.has_unfinished_requests()
    assert llm.get_stats()["num_used_blocks"] == 0
