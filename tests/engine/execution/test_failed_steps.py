"""A step that fails in its middle: no token is waited for any more, and whoever goes on gets the right ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_answers import NUM_TOKENS, answer, ragged_prompts, shrink_pool
from small_models import Checkpoint

from kvplan_engine import LLM, SamplingParams

PLACES = ("move", "prepare", "forward", "sample", "process")


class Failure(Exception):
    """What goes wrong in a step."""


def start(checkpoint: Checkpoint, **settings: object) -> LLM:
    defaults: dict[str, object] = {"max_num_batched_tokens": 48, "max_num_seqs": 6, "block_size": 8}
    defaults |= {"dtype": "float32", "device": "cpu", "device_memory": "512MiB", "max_model_len": 96}
    return LLM(str(checkpoint.path), **(defaults | settings))


def owner_of(llm: LLM, place: str) -> tuple[Any, str]:
    """The object and the method that a step goes through at ``place``."""
    loop = llm.engine.serving.loop
    return {
        "move": (loop._mover, "run"),
        "prepare": (loop._runner, "prepare"),
        "forward": (loop._runner, "forward"),
        "sample": (loop, "_sample"),
        "process": (loop._output_processor, "_note_times"),
    }[place]


def fail_every(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> None:
    method: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % number == 0:
            raise Failure
        return method(*arguments)

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize("runs_ahead", [False, True], ids=["waiting", "ahead"])
@pytest.mark.parametrize("place", PLACES)
def test_answers_are_right_although_every_fifth_step_fails(
    checkpoints: dict[str, Checkpoint],
    expected_tokens: dict[str, list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    runs_ahead: bool,
) -> None:
    llm = start(checkpoints["llama"], swap_space="1MiB", preemption_mode="swap", async_scheduling=runs_ahead)
    shrink_pool(llm, num_tokens=128)
    fail_every(monkeypatch, *owner_of(llm, place), number=2 if place == "move" else 5)
    engine, num_failures = llm.engine, 0
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    requests = [engine.add_request(f"r{i}", prompt, params) for i, prompt in enumerate(ragged_prompts())]
    while engine.has_unfinished_requests():
        try:
            engine.step()
        except Failure:
            num_failures += 1
            engine.check()
            assert engine.scheduler.num_orphan_tokens == 0
            assert engine.get_stats()["num_used_blocks"] == 0
    assert [request.sequences[0].output_token_ids for request in requests] == expected_tokens["llama"]
    assert num_failures > 0


@pytest.mark.parametrize("place", PLACES[1:])
def test_nobody_waits_for_the_tokens_of_a_failed_answer(
    checkpoints: dict[str, Checkpoint],
    expected_tokens: dict[str, list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    llm = start(checkpoints["llama"])
    prompts = [{"prompt_token_ids": prompt} for prompt in ragged_prompts()]
    with monkeypatch.context() as patch:
        fail_every(patch, *owner_of(llm, place), number=3)
        for n in (1, 3):
            with pytest.raises(Failure):
                llm.generate(prompts, SamplingParams(n=n, max_tokens=NUM_TOKENS))
            assert llm.engine.scheduler.num_orphan_tokens == 0
            assert not llm.engine.serving.requests
            assert llm.get_stats()["num_used_blocks"] == 0
    assert answer(llm, ragged_prompts(), NUM_TOKENS) == expected_tokens["llama"]
