"""Steady states in closed form, against what is known of their limits and against loads that are played."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_clocks import EvenClock, PromptClock

from kvplan.estimate.speed.queueing.loads import (
    LengthDistribution,
    PlayedLoad,
    Think,
    steady_users,
    thinking_users,
    users,
)
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.steady import PromptReading, SharedSteps, SteadyState, num_decoding, steady_state

STEP, TOKEN = 0.02, 0.001
BUDGET = 1024


class Clock:
    """20 ms a step, and 1 ms for each token of a prompt."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        return STEP + TOKEN * (num_tokens - num_sequences)


def steps_of(prompt: int) -> SharedSteps:
    return SharedSteps(STEP, lambda read: STEP + read.in_fullest * prompt * TOKEN)


def steady(prompt: int, num_users: int, answer: int) -> SteadyState:
    return steady_state(steps_of(prompt), PromptReading(prompt / (BUDGET - num_users)), num_users, answer)


def test_one_user_waits_for_the_prompt_alone() -> None:
    alone = steady_state(steps_of(2000), PromptReading(), 1, 100)
    assert alone.ttft_seconds == pytest.approx(2.0 + STEP) and alone.tpot_seconds == STEP


@pytest.mark.parametrize(
    ("num_users", "prompt", "answer"),
    [(4, 8000, 64), (4, 500, 500), (16, 4000, 256), (16, 8000, 64), (64, 500, 500), (64, 4000, 256), (64, 8000, 64)],
)
def test_it_says_what_a_play_does(num_users: int, prompt: int, answer: int) -> None:
    """From a queue that is mostly empty to prompts that are read without end."""
    load = steady_users(num_users, prompt, answer)
    played = play(replace(load, num_requests=6 * num_users + 120), SchedulingRules(num_users, BUDGET, 1e9), Clock())
    found = steady(prompt, num_users, answer)
    assert played.tpot is not None
    assert found.ttft_seconds == pytest.approx(played.ttft.mean, rel=0.4)
    assert found.tpot_seconds == pytest.approx(played.tpot.mean, rel=0.15)
    assert found.requests_per_second == pytest.approx(num_users / played.e2el.mean, rel=0.1)


@pytest.mark.parametrize(("chunks", "passes"), [(4, 2.5), (1, 1.0)])
def test_a_pipeline_reads_the_chunks_of_a_prompt_side_by_side(chunks: int, passes: float) -> None:
    """Of passes in which both stages have a chunk: four chunks take two and a half, one chunk as long as one."""
    steps = SharedSteps(STEP, lambda read: read.in_fullest)
    alone = steady_state(steps, PromptReading(chunks, num_stages=2), 1, 100)
    assert PromptReading(chunks, num_stages=2).own_steps == passes
    assert alone.ttft_seconds == pytest.approx(passes * 2 / chunks)


@pytest.mark.parametrize(("prompt", "passed"), [(1000, 1.0), (2000, 0.5)])
def test_a_played_prompt_passes_the_stages_one_after_the_other(prompt: int, passed: float) -> None:
    """Of a pass in which two stages share the work: a single chunk is late by a whole one, two chunks by half of it."""
    one, rules = users(1, prompt, 10), SchedulingRules(1, 1000, 1e9)
    plain = play(one, replace(rules, max_num_batched_tokens=2000), Clock())
    staged = play(one, rules.over_groups(1, stages=2), Clock())
    late = staged.ttft.mean - plain.ttft.mean
    assert late == pytest.approx(passed * plain.ttft.mean, rel=0.03)  # the 20 ms of a step are in its chunks once
    assert staged.e2el.mean - plain.e2el.mean == pytest.approx(late)


@pytest.mark.parametrize("prompts_first", [False, True])
def test_the_stages_of_a_pass_hold_as_many_tokens_as_its_sequences(prompts_first: bool) -> None:
    """Those who decode have their share of the cache only in steps that they are in."""

    class Counted(Clock):
        def seconds(
            self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
        ) -> float:
            assert 0 <= num_kv_tokens <= 4000 * num_sequences and num_pairs > 0
            return super().seconds(num_tokens, num_sequences, num_sampled, num_kv_tokens, num_pairs)

    rules = SchedulingRules(16, 1000, 1e9, prompts_first=prompts_first)
    play(steady_users(16, 600, 300), rules.over_groups(1, stages=2), Counted())


def test_the_more_wait_for_their_prompts_the_fewer_decode() -> None:
    def beside(decoding: float) -> float:
        return 4000 / max(64 - decoding, 1.0)

    assert num_decoding(1, 64, beside) == 1
    few, many = num_decoding(4, 64, beside), num_decoding(400, 64, beside)
    assert 1 < few < 2, "a prompt takes as many steps as an answer"
    assert few < many < 2
    assert num_decoding(64, 64, lambda decoding: 0.001) == pytest.approx(64, rel=0.1)


@pytest.mark.parametrize("budget", [16, 48, 256])
def test_steps_smaller_than_the_users(budget: int) -> None:
    """Those who wait take nothing of the steps' tokens."""
    num_users, prompt, answer = 40, 4000, 256

    def beside(decoding: float) -> float:
        return prompt / max(budget - decoding, 1.0)

    decoding = num_decoding(num_users, answer, beside)
    found = steady_state(steps_of(prompt), PromptReading(beside(decoding)), num_users, answer)
    load = steady_users(num_users, prompt, answer, found.reading_share)
    played = play(replace(load, num_requests=4 * num_users + 120), SchedulingRules(num_users, budget, 1e9), Clock())
    assert decoding < budget
    assert found.ttft_seconds == pytest.approx(played.ttft.mean, rel=0.2)
    assert found.requests_per_second == pytest.approx(num_users / played.e2el.mean, rel=0.2)


def test_a_play_begins_with_as_many_waiting_as_there_are_on_average() -> None:
    """Answers of two tokens: nearly all users wait, and the first ones that count wait as long as the last ones."""
    rules = SchedulingRules(100, BUDGET, 1e9)
    found = steady_state(steps_of(8000), PromptReading(8000 / (BUDGET - 1)), 100, 2)
    short = play(steady_users(100, 8000, 2, found.reading_share), rules, Clock())
    long = play(replace(steady_users(100, 8000, 2, found.reading_share), num_requests=1000), rules, Clock())
    assert short.ttft.mean == pytest.approx(long.ttft.mean, rel=0.05)
    assert found.ttft_seconds == pytest.approx(long.ttft.mean, rel=0.1)


RULES = SchedulingRules(max_num_seqs=256, max_num_batched_tokens=1024, pool_tokens=1e9)


def test_one_user_answers_and_thinks_in_turn() -> None:
    """Answers of 5 steps and pauses of 20 s: 200 requests take 200 answers and 199 pauses, whose mean is exact."""
    load = PlayedLoad(LengthDistribution(10), LengthDistribution(5), 200, think=Think(20.0, 1))
    played = play(load, RULES, EvenClock())
    assert played.e2el.mean == 5.0 and played.max_running == 1
    assert played.seconds == pytest.approx(200 * 5 + 200 * 20, rel=0.03)


@pytest.mark.parametrize("think", [0.5, 4.0, 40.0])
def test_throughput_and_users_in_progress_follow_from_latency_and_pause(think: float) -> None:
    """The interactive response time law, which holds whatever the engine does: X = N / (R + Z)."""
    load = replace(thinking_users(60, think, 30, 300, 60), num_requests=2400, num_warmups=300, num_cooldowns=300)
    played = play(load, RULES, PromptClock())
    counted = played.request_throughput
    assert counted == pytest.approx(60 / (played.e2el.mean + think), rel=0.06)


def test_without_pauses_users_are_a_closed_loop() -> None:
    closed = play(steady_users(16, 300, 60), RULES, PromptClock())
    thinking = play(thinking_users(16, 1e-6, 16, 300, 60), RULES, PromptClock())
    assert thinking.e2el.mean == pytest.approx(closed.e2el.mean, rel=0.03)
    assert thinking.tpot is not None and closed.tpot is not None
    assert thinking.tpot.mean == pytest.approx(closed.tpot.mean, rel=0.03)


def test_a_load_with_pauses_begins_as_it_goes_on() -> None:
    """The requests that count see as many others as those long after the start."""
    begun = play(thinking_users(60, 4.0, 29, 300, 60), RULES, PromptClock())
    later = replace(thinking_users(60, 4.0, 29, 300, 60), num_requests=2000, num_warmups=1000)
    assert begun.e2el.mean == pytest.approx(play(later, RULES, PromptClock()).e2el.mean, rel=0.06)
