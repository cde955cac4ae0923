"""Storms of requests, and steps that fail in the middle of them: every answer ends, and the others are right."""

import copy
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_answers import NUM_TOKENS, answer, ragged_prompts, shrink_pool, small_llm
from engine_storm import run_storm
from multi_token_models import MultiTokenCheckpoint
from small_models import Checkpoint

from kvplan_engine import LLM, SamplingParams


def test_every_request_of_a_storm_ends_with_all_of_its_samples(checkpoints: dict[str, Checkpoint]) -> None:
    storm = run_storm(checkpoints["llama"], 180, per_round=20)
    assert storm.num_lost == 0
    assert storm.num_leaked_blocks == 0
    assert storm.wrong == []
    assert storm.num_aborted > 50
    assert min(storm.num_preemptions, storm.num_swaps, storm.num_hits, storm.num_steps_ahead) > 10, storm


def test_a_storm_with_a_draft_model(checkpoints: dict[str, Checkpoint], tmp_path: Path) -> None:
    """The same with drafts, some of them right: aborted between steps, cut by budgets, preempted, forked."""
    torch.manual_seed(1)
    drafter = copy.deepcopy(checkpoints["llama"].model)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim > 1:
                parameter += 0.03 * parameter.std() * torch.randn_like(parameter)
    drafter.save_pretrained(tmp_path)
    drafting: dict[str, object] = {"model": str(tmp_path), "num_speculative_tokens": 3}
    storm = run_storm(checkpoints["llama"], 100, per_round=20, seed=3, speculative_config=drafting)
    assert storm.num_lost == storm.num_leaked_blocks == storm.num_steps_ahead == 0
    assert storm.wrong == []
    assert 100 < storm.num_accepted < storm.num_drafts - 100
    assert min(storm.num_aborted, storm.num_preemptions, storm.num_swaps, storm.num_hits) > 10, storm


def test_a_storm_with_a_layer_for_multi_token_prediction(tmp_path: Path) -> None:
    """The same with drafts that follow from the hidden states of the step before."""
    drafting: dict[str, object] = {"method": "mtp", "num_speculative_tokens": 3}
    storm = run_storm(MultiTokenCheckpoint("mimo", tmp_path), 100, per_round=20, seed=3, speculative_config=drafting)
    assert storm.num_lost == storm.num_leaked_blocks == storm.num_steps_ahead == 0
    assert storm.wrong == []
    assert 20 < storm.num_accepted < storm.num_drafts - 100
    assert min(storm.num_aborted, storm.num_preemptions, storm.num_swaps, storm.num_hits) > 10, storm


PLACES = ("move", "prepare", "forward", "sample", "process")


class Failure(Exception):
    """What goes wrong in a step."""


def start(checkpoint: Checkpoint, **settings: object) -> LLM:
    limits = {"max_num_batched_tokens": 48, "max_num_seqs": 6, "block_size": 8, "max_model_len": 96}
    return small_llm(checkpoint.path, **limits | settings)


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


if __name__ == "__main__":
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        print(run_storm(Checkpoint("llama", Path(folder)), int(sys.argv[1])))
    print(f"{time.monotonic() - began:.0f} s")
