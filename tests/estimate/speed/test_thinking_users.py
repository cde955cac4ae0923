"""Users who think between an answer and the next request: their play against what is known of such closed loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
from step_clocks import EvenClock, PromptClock

from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, Think, steady_users, thinking_users
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import SchedulingRules

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
