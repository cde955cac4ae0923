"""Published comparisons of prefill and decode apart: which side wins, and about by how much where a ratio is stated.

None of these results was looked at before the rules of the play were written, and nothing is fitted to them.

sgl-project/sglang-omni issue 1760    Qwen3-Omni's thinker on H200s, one prefill card: a second decode card is worth
                                      +66 % at 16 in flight with prompts of 1,024 tokens, and -0.3 % with 8,128. As in
                                      pull request 1599: 4 running requests at most, answers of 32 tokens.
pull requests 1599 and 1793           text prompts: two cards that do both beat one pair at any load
vllm-project/vllm pull request 41834  DeepSeek-V4-Flash on eight GB10, prompts of 100,000 and more: one engine of eight
                                      beats a prefill engine and a decode engine of four
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.engine_speed import engine_speed_model
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import kv_read_bytes, model_work
from kvplan.estimate.vllm.prediction import cache_settings, predict_vllm
from kvplan.fleet.apart.moved import MovedKv
from kvplan.fleet.apart.play import ApartFleet, ApartSetup, PoolSetup
from kvplan.fleet.apart.rules import SGLANG, VLLM, HandOver
from kvplan.fleet.replicas.fleet import Fleet
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import PoolLayout, ReplicaSetup
from kvplan.fleet.requests import FleetRequest
from kvplan.fleet.routers.in_turn import LeastLoaded, RoundRobin
from kvplan.settings import ServingSettings


@dataclass(frozen=True)
class _Server:
    """One replica of a model on so many GPUs of a kind, and what its KV goes over."""

    model: str
    gpu: str
    num_gpus: int
    engine: str
    link: str
    max_num_seqs: int
    budget: int
    longest: int

    def apart(self, rules: HandOver) -> ApartSetup:
        """Pools of such replicas."""
        setup, moved = _replica(self)
        gpu = find_gpu(self.gpu)
        link = gpu.nvlink_bytes_per_second if self.link == "nvlink" else gpu.network_bytes_per_second
        assert link is not None
        pool = PoolSetup(setup, link * self.num_gpus)
        return ApartSetup(pool, pool, moved, rules)


@cache
def _replica(server: _Server) -> tuple[ReplicaSetup, MovedKv]:
    spec, gpu = resolve_model(server.model), find_gpu(server.gpu)
    settings = ServingSettings(
        tensor_parallel_size=server.num_gpus,
        max_model_len=server.longest,
        max_num_batched_tokens=server.budget,
        max_num_seqs=server.max_num_seqs,
    )
    found = predict_vllm(spec, gpu, settings)
    work = model_work(spec, found.rank.weight_bytes, "bfloat16", ParallelLayout(server.num_gpus))
    profile = load_measured(None).for_gpu(gpu, work.speed_format, server.engine)
    speed = None if profile is None else DeviceSpeed.of(profile, spec.id, work.speed_format)
    read = kv_read_bytes(spec, server.longest, cache_settings(spec, found.settings.serving))
    model = engine_speed_model(EngineChoice(server.engine), work, gpu, server.longest, 32, read, speed)
    rules = SchedulingRules(
        server.max_num_seqs,
        server.budget,
        float(found.kv_cache_tokens),
        prompts_first=server.engine == "sglang",
    )
    pool = PoolLayout.full_attention(found.block_size, found.num_blocks, caches_prefixes=False)
    return ReplicaSetup(rules, model.steps, pool), MovedKv(found.rank.blocks, server.num_gpus)


def _in_flight(count: int, num_requests: int, prompt: int, answer: int) -> list[FleetRequest]:
    """A closed loop."""
    waits_for = [number - count if number >= count else None for number in range(num_requests)]
    return [FleetRequest(number, 0.0, prompt, answer, after=other) for number, other in enumerate(waits_for)]


def _rate(seen: list[Seen]) -> float:
    return len(seen) / max(each.last for each in seen)


_OMNI = _Server("qwen3-omni-30b-a3b", "h200", 1, "sglang", "nvlink", 4, 8192, 8192)
_WHEN_READ = replace(SGLANG, reserves_first=False)
"""sglang-omni's own hand-over, when the prompt has been read (issue 1760, stage 1)."""


def _second_decode_card(prompt: int) -> float:
    load = _in_flight(16, 100, prompt, 32)
    fleets = [ApartFleet(_OMNI.apart(_WHEN_READ), 1, count, (RoundRobin(), LeastLoaded())) for count in (1, 2)]
    one, two = (_rate(fleet.play(load).seen) for fleet in fleets)
    return two / one - 1


def test_a_second_decode_card_is_worth_much_with_short_prompts() -> None:
    assert _second_decode_card(1024) > 0.3


def test_a_second_decode_card_is_worth_nothing_with_long_prompts() -> None:
    assert _second_decode_card(8128) == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize(("seats", "in_flight"), [(16, 64), (64, 128)])
def test_two_cards_that_do_both_beat_one_pair_on_text(seats: int, in_flight: int) -> None:
    server, load = replace(_OMNI, max_num_seqs=seats), _in_flight(in_flight, 300, 256, 128)
    pair = ApartFleet(server.apart(_WHEN_READ), 1, 1, (RoundRobin(), LeastLoaded())).play(load).seen
    together = Fleet(_replica(server)[0], 2, LeastLoaded()).play(load).seen
    assert _rate(together) > 1.2 * _rate(pair)


def test_eight_gb10_together_beat_two_engines_of_four_on_long_prompts() -> None:
    eight = _Server("deepseek-v4-flash", "gb10", 8, "vllm", "network", 8, 16384, 262_144)
    load = [FleetRequest(number, 600.0 * number, 200_000, 500) for number in range(2)]
    together = Fleet(_replica(eight)[0], 1, RoundRobin()).play(load).seen
    four = replace(eight, num_gpus=4).apart(VLLM)
    apart = ApartFleet(four, 1, 1, (RoundRobin(), RoundRobin())).play(load).seen
    for one, other in zip(together, apart, strict=True):
        assert one.ttft_seconds < other.ttft_seconds
        assert one.e2el_seconds < other.e2el_seconds
