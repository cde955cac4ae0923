"""What the host adds to a step by engine and release, and the server's own work on requests and tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.kernel_tables import read_kernel_tables
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.estimate.speed.queueing.figures import PlayedFigures
from kvplan.estimate.speed.queueing.front_end import (
    VLLM_FRONT_END,
    VLLM_TEMPLATE_SECONDS,
    FrontEnd,
    vllm_front_end,
)
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, steady_users, users
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.queueing.steps import HostedSteps, mixed_tile_rows
from kvplan.estimate.speed.steady import PromptReading, SharedSteps, behind_server, steady_state
from kvplan.estimate.speed.steps.host import (
    CAPTURED,
    IN_PROCESS,
    NO_HOST,
    HostWork,
    Launches,
    host_work,
    sglang_host,
    trtllm_host,
    vllm_host,
)

LAYERS, MIXTURES = 32, 16


class _Gpu:
    """Seconds are the pairs that meet in attention."""

    def seconds(self, tokens: float, sequences: float, sampled: float, kv_tokens: float, pairs: float) -> float:
        return pairs

    def seconds_beside(
        self, met: float, tokens: float, sequences: float, sampled: float, kv_tokens: float, pairs: float
    ) -> float:
        return pairs


def test_launches_hide_behind_the_gpu_and_work_between_steps_does_not() -> None:
    host = HostWork(decoding=Launches(1e-3, 5e-4), step_seconds=2e-3, sequence_seconds=1e-4)
    launching = LAYERS * 1e-3 + MIXTURES * 5e-4
    assert host.decode_seconds(0.01, LAYERS, MIXTURES, 8, 100) == pytest.approx(launching + 2e-3 + 8e-4)
    assert host.decode_seconds(0.5, LAYERS, MIXTURES, 8, 100) == pytest.approx(0.5 + 2e-3 + 8e-4)
    assert host.mixed_seconds(0.01, LAYERS, MIXTURES, 8, 100) == pytest.approx(0.01 + 2e-3 + 8e-4)


def test_the_first_engine_captures_no_long_context() -> None:
    host = vllm_host(vllm_release("0.7.3"))
    within, beyond = (host.decode_seconds(1e-3, LAYERS, 0, 1, tokens) for tokens in (8192, 8193))
    assert beyond > 5 * within


@pytest.mark.parametrize(("host", "largest"), [(vllm_host(vllm_release("0.14.0")), 512), (sglang_host(160), 160)])
def test_no_engine_captures_more_rows_than_its_largest_graph_has(host: HostWork, largest: int) -> None:
    within, beyond = (host.decode_seconds(1e-3, LAYERS, 0, rows, 100) for rows in (largest, largest + 1))
    assert within == 1e-3 and beyond > 5 * within
    small, large = (host.mixed_seconds(1e-3, LAYERS, 0, 1, rows) for rows in (largest, largest + 1))
    assert large >= small > 1e-3


@pytest.mark.parametrize(("older", "newer"), [("0.5.4", "0.7.3"), ("0.9.2", "0.11.0"), ("0.11.0", "0.14.0")])
def test_newer_releases_cost_the_host_less(older: str, newer: str) -> None:
    def decode(version: str) -> float:
        return vllm_host(vllm_release(version)).decode_seconds(1e-3, LAYERS, 0, 64, 500)

    assert decode(older) > decode(newer) >= 1e-3


@pytest.mark.parametrize(
    ("version", "seconds"), [("0.7.3", 0.02e-3), ("0.8.4", 0.017e-3), ("0.13.0", 0.017e-3), ("0.14.0", 0.0)]
)
def test_what_a_sequence_costs_between_steps(version: str, seconds: float) -> None:
    """Asynchronous scheduling hides all of it."""
    assert vllm_host(vllm_release(version)).sequence_seconds == seconds


def test_the_first_engine_shares_its_callers_event_loop() -> None:
    """So did its servers until 0.6.2; the V1 engine has a process of its own."""

    def sequence(version: str, *, in_process: bool) -> float:
        return vllm_host(vllm_release(version), in_process=in_process).sequence_seconds

    assert sequence("0.7.3", in_process=True) == pytest.approx(0.065e-3)
    assert sequence("0.6.1", in_process=False) == pytest.approx(0.065e-3)
    assert sequence("0.13.0", in_process=True) == sequence("0.13.0", in_process=False)
    choice, gpu = EngineChoice("vllm", "0.7.3", IN_PROCESS), find_gpu("h100-sxm")
    assert host_work(choice, vllm_release("0.7.3"), gpu, 1).sequence_seconds == sequence("0.7.3", in_process=True)


def test_each_engine_has_its_own_host() -> None:
    release, gpu = vllm_release("0.14.0"), find_gpu("h100-sxm")
    assert host_work(EngineChoice("sglang"), release, gpu, 1) == sglang_host(256)
    assert host_work(EngineChoice("sglang"), release, gpu, 8) == sglang_host(512)
    assert host_work(EngineChoice("sglang", "0.4.3.post2"), release, gpu, 8) == sglang_host(160)
    assert host_work(EngineChoice("kvplan"), release, gpu, 1) is NO_HOST
    assert host_work(EngineChoice("vllm"), release, gpu, 1) == vllm_host(release)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_eager_steps_are_bound_by_their_launches(engine: str) -> None:
    """0.57 ms a layer whatever the GPU takes less: 22.8 ms for 40 layers, however few tokens."""
    gpu, release = find_gpu("a100-80gb-sxm"), vllm_release("0.14.0")
    usual = host_work(EngineChoice(engine), release, gpu, 1)
    eager = host_work(EngineChoice(engine), release, gpu, 1, is_eager=True)
    assert usual.decode_seconds(10e-3, 40, 0, 1, 1000) == 10e-3
    assert eager.decode_seconds(10e-3, 40, 0, 1, 1000) == pytest.approx(22.8e-3)
    assert eager.mixed_seconds(10e-3, 40, 0, 1, 1000) == pytest.approx(22.8e-3)
    assert eager.decode_seconds(50e-3, 40, 0, 1, 1000) == 50e-3


@pytest.mark.parametrize(("rows", "is_captured"), [(1, True), (32, True), (33, False), (64, True), (65, False),
                                                   (128, True), (200, False)])  # fmt: skip
def test_tensorrt_llm_pads_no_batch(rows: int, is_captured: bool) -> None:
    host = trtllm_host(EngineChoice("trtllm", "1.2.0"))
    seconds = host.decode_seconds(1e-3, LAYERS, 0, rows, 100)
    assert seconds == pytest.approx(1e-3 if is_captured else LAYERS * 0.57e-3)


def test_engines_that_were_built_and_kvplans_own_have_no_launches() -> None:
    gpu, release = find_gpu("a100-80gb-sxm"), vllm_release("0.14.0")
    for engine in (EngineChoice("trtllm", backend="tensorrt"), EngineChoice("kvplan")):
        assert host_work(engine, release, gpu, 1, is_eager=True) is NO_HOST


def test_vllm_captures_larger_steps_on_blackwell() -> None:
    """1,024 rows on B200 from the release on whose memory counts them; not on consumers' Blackwell."""
    new, old = vllm_release("0.33.0"), vllm_release("0.14.0")
    found = [
        host_work(EngineChoice("vllm"), release, find_gpu(name), 1).largest_captured
        for release, name in ((new, "b200"), (old, "b200"), (new, "rtx-pro-6000"), (new, "h100-sxm"))
    ]
    assert found == [1024, 512, 512, 512]


def test_sglang_captures_prompts_in_pieces() -> None:
    """A chunk of 8,192 tokens as well as a short one; decode steps beyond the largest graph are launched as before."""
    eager, pieces = sglang_host(256), sglang_host(256, captures_prompts=True)
    for tokens in (100, 8192):
        reading = [host.mixed_seconds(1e-3, LAYERS, 0, 1, tokens) for host in (eager, pieces)]
        assert reading == pytest.approx([LAYERS * 0.57e-3, LAYERS * 0.19e-3])
    beyond = [host.decode_seconds(1e-3, LAYERS, 0, 257, 100) for host in (eager, pieces)]
    assert beyond == pytest.approx([LAYERS * 0.57e-3] * 2)


@pytest.mark.parametrize(
    ("version", "backend", "decodes_captured", "reads_captured"),
    [
        ("0.17", "", True, True),
        ("0.17", "pytorch", False, False),
        ("1.0.0", "", True, False),
        ("1.3.0rc14", "pytorch", True, False),
        ("latest", "", True, False),
        ("latest", "tensorrt", True, True),
    ],
)
def test_what_tensorrt_llm_captures(version: str, backend: str, decodes_captured: bool, reads_captured: bool) -> None:
    host = trtllm_host(EngineChoice("trtllm", version, backend))
    assert (host.decode_seconds(1e-3, LAYERS, 0, 8, 500) == 1e-3) is decodes_captured
    assert (host.mixed_seconds(1e-3, LAYERS, 0, 8, 500) == 1e-3) is reads_captured


def test_older_gpus_pad_what_decodes_beside_prompts_to_a_tile() -> None:
    release = vllm_release("0.11.0")
    assert [mixed_tile_rows(release, each) for each in ("8.0", "8.9", "9.0", "10.0", "12.0")] == [64, 64, 1, 1, 64]
    assert mixed_tile_rows(vllm_release("0.7.3"), "8.0") == 1
    steps = HostedSteps(_Gpu(), NO_HOST, LAYERS, 0, mixed_tile_rows=64)
    assert steps.seconds(8, 8, 8, 1000, 1000.0) == 1000.0  # decoding only
    assert steps.seconds(100, 8, 8, 1000, 5000.0) == 5000.0 + 63 * 1000


def test_a_gpu_without_tables_is_scaled_from_one_of_its_capability() -> None:
    profiles = MeasuredProfiles(read_kernel_tables())
    pcie, sxm = (profiles.for_gpu(find_gpu(name), "bfloat16", "vllm") for name in ("h100-pcie", "h100-sxm"))
    assert pcie is not None and sxm is not None
    assert pcie.origin_for("gpt2", "bfloat16") == "scaled"
    assert pcie.coefficients["layer_seconds"] == sxm.coefficients["layer_seconds"]
    ratio = (
        find_gpu("h100-pcie").memory_bandwidth_bytes_per_second / find_gpu("h100-sxm").memory_bandwidth_bytes_per_second
    )
    assert pcie.coefficients["bandwidth"] == pytest.approx(ratio * sxm.coefficients["bandwidth"])
    assert pcie.note is not None and pcie.note.endswith("scaled to h100-pcie by the data sheets")
    assert profiles.for_gpu(find_gpu("mi300x"), "bfloat16", "vllm") is None
    assert profiles.for_gpu(find_gpu("v100-32gb"), "float16", "vllm") is None


def test_multipliers_that_are_few_beside_memory_are_kept_busy() -> None:
    """An H20 has 0.15 of an H100's and more of its bandwidth: attention reaches 0.85 of the data sheet, not 0.42."""
    profiles, h20, h100 = MeasuredProfiles(read_kernel_tables()), find_gpu("h20"), find_gpu("h100-sxm")
    few, many = (profiles.for_gpu(gpu, "bfloat16", "vllm") for gpu in (h20, h100))
    assert few is not None and many is not None
    for name in ("flops", "attention_flops"):
        assert few.coefficients[name] == pytest.approx(0.85 * h20.flops("bfloat16"))
        assert many.coefficients[name] < 0.85 * h100.flops("bfloat16")


@pytest.mark.parametrize(("layers", "mixtures", "measured_ms"), [(61, 58, 82.6), (27, 26, 31.0)])
def test_latent_attention_launches_more(layers: int, mixtures: int, measured_ms: float) -> None:
    """A prompt of one token to DeepSeek-V3, and a token of DeepSeek-Coder-V2-Lite that nothing captures."""
    host = sglang_host(256)
    plain, latent = (each.mixed_seconds(1e-3, layers, mixtures, 1, 1) for each in (host, host.with_mixers(1.0)))
    assert 1e3 * latent == pytest.approx(measured_ms, rel=0.1)
    assert 1e3 * plain < 0.86 * measured_ms
    assert host.with_mixers(0.0).mixed_seconds(1e-3, layers, mixtures, 1, 1) == plain
    assert host.with_mixers(1.0).decoding == CAPTURED


@pytest.mark.parametrize("captures_prompts", [False, True])
def test_layers_of_a_gated_delta_rule_are_launched_kernel_by_kernel_in_prompts(captures_prompts: bool) -> None:
    """Three of four layers of Qwen3.5-397B; decode steps are captured with them."""
    host = sglang_host(256, captures_prompts=captures_prompts)
    plain, delta = host.with_mixers(0.0), host.with_mixers(0.0, 45 / 60)
    prompts = [each.mixed_seconds(1e-3, 60, 60, 1, 1024) for each in (plain, delta)]
    assert prompts[1] - prompts[0] == pytest.approx(45 * 2.8e-3)
    assert delta.mixed_seconds(0.5, 60, 60, 1, 1024) == 0.5  # hidden behind a long one's kernels
    assert delta.decoding == CAPTURED


class Clock:
    """Every step takes 10 ms."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        return 0.01


def _played(load: PlayedLoad, front_end: FrontEnd, **rules: bool) -> PlayedFigures:
    return play(load, SchedulingRules(256, 8192, 1e9, front_end=front_end, **rules), Clock())


BURST = PlayedLoad(LengthDistribution(16), LengthDistribution(2), 50)


def test_requests_that_were_sent_together_are_parsed_before_one_goes_on() -> None:
    ttft = _played(BURST, FrontEnd(parsing_seconds=0.1)).ttft
    assert (ttft.median, ttft.p99) == (pytest.approx(5.01), pytest.approx(5.01))


def test_the_engine_is_handed_one_after_another() -> None:
    """A token waits for the request that the loop has turned to: the k-th until (k + 1) x 0.1 s."""
    ttft = _played(BURST, FrontEnd(request_seconds=0.1)).ttft
    assert (ttft.median, ttft.p99) == (pytest.approx(2.65), pytest.approx(5.0, abs=0.02))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_request_alone_waits_for_all_of_it_and_streams_at_the_engines_pace(ahead: bool) -> None:
    played = _played(users(1, 16, 10), FrontEnd(0.02, 0.03, 0.001), schedules_ahead=ahead)
    assert played.ttft.median == pytest.approx(0.02 + 0.03 + 0.01 + 0.001)
    assert played.tpot is not None
    assert played.tpot.median == pytest.approx(0.01)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_busy_event_loop_bounds_the_throughput_and_starves_nobody(ahead: bool) -> None:
    """50 tokens of 5 ms and 10 ms more: under 4 requests a second, where the engine answers 32 in half a second."""
    front = FrontEnd(request_seconds=0.01, token_seconds=0.005)
    played = _played(users(32, 16, 50, rounds=8), front, schedules_ahead=ahead)
    assert played.request_throughput == pytest.approx(1 / front.seconds(50), rel=0.05)
    assert played.max_running > 1


class ReadingClock:
    """Steps are longer the more tokens they compute."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        return self._step_seconds + 2.5e-5 * num_tokens


def test_a_faster_engine_is_not_handed_requests_later() -> None:
    """512 tokens are streamed in 24 ms. Where decoding takes less, tokens wait to be streamed; requests need not wait
    for all of these, as steps that read prompts leave the loop time enough."""

    def first_token_seconds(step_seconds: float) -> float:
        rules = SchedulingRules(512, 8192, 1e9, front_end=VLLM_FRONT_END, schedules_ahead=True)
        return play(steady_users(512, 512, 128), rules, ReadingClock(step_seconds)).ttft.median

    assert VLLM_FRONT_END.token_seconds * 512 == pytest.approx(0.0243, abs=1e-4)
    slow, fast = (first_token_seconds(decoding - 2.5e-5 * 512) for decoding in (0.031, 0.023))
    assert fast < 1.5 * slow  # 4 times as long where requests wait for all tokens


def test_tokens_that_are_streamed_in_time_cost_no_throughput() -> None:
    free, busy = (_played(users(8, 16, 50), FrontEnd(token_seconds=each)) for each in (0.0, 0.001))
    assert busy.tpot is not None and free.tpot is not None
    assert busy.tpot.median == pytest.approx(free.tpot.median)
    assert busy.e2el.median == pytest.approx(free.e2el.median + 8 * 0.001, abs=0.002)


def test_instances_behind_one_server_wait_for_each_others_requests() -> None:
    front = FrontEnd(0.001, 0.01, 0.0001)
    whole, half = _played(replace(BURST, num_requests=100), front), _played(BURST, front.shared_by(2))
    assert half.ttft.p99 == pytest.approx(whole.ttft.p99, rel=0.02)


def test_time_away_from_the_loop_delays_each_request_and_fills_nothing() -> None:
    """What was measured of a lone request is one step and 9.1 ms; a busy loop answers as many as before."""
    front = replace(VLLM_FRONT_END, token_seconds=0.0)
    assert _played(users(1, 16, 10), front).ttft.median == pytest.approx(0.01 + 0.0091)
    assert front.shared_by(2).away_seconds == front.away_seconds
    busy = FrontEnd(request_seconds=0.02)
    throughputs = [
        _played(users(64, 16, 50, rounds=8), each).request_throughput
        for each in (busy, replace(busy, away_seconds=0.01))
    ]
    assert throughputs[1] == pytest.approx(throughputs[0], rel=0.02)


def test_several_servers_share_the_work_and_a_request_alone_takes_as_long() -> None:
    front = FrontEnd(0.02, 0.03, 0.002)
    four = replace(front, servers=4)
    busy, shared = (_played(users(32, 16, 50, rounds=16), each) for each in (front, four))
    assert shared.request_throughput == pytest.approx(4 * busy.request_throughput, rel=0.05)
    alone = _played(users(1, 16, 10), four).ttft
    assert alone.median == pytest.approx(0.02 / 4 + 0.03 + 0.01 + 0.002 / 4)


@pytest.mark.parametrize(("version", "groups", "servers"), [("0.14.1", 8, 1), ("0.15.0", 8, 8), ("latest", 1, 1)])
def test_releases_with_a_server_for_each_group(version: str, groups: int, servers: int) -> None:
    assert vllm_front_end(vllm_release(version), chats=True, groups=groups).servers == servers


@pytest.mark.parametrize(("num_users", "is_bounded"), [(32, False), (96, False), (192, True), (512, True)])
def test_a_steady_state_answers_what_a_play_does(num_users: int, is_bounded: bool) -> None:
    """With the server's event loop idle and busy: throughput within 6 %, and TTFT once the queue before it is long.

    In the play a busy loop takes longer to settle than requests are played, hence the larger bound for it.
    """
    step = Clock().seconds(num_users, num_users, num_users, 0, 0.0)
    prompts = PromptReading(chunks=0.1, seconds_away=VLLM_FRONT_END.first_token_seconds)
    free = steady_state(SharedSteps(step, lambda read: step), prompts, num_users, 128)
    steady = behind_server(free, VLLM_FRONT_END, 128)
    played = _played(replace(steady_users(num_users, 512, 128), num_requests=12 * num_users), VLLM_FRONT_END)
    tolerance = 0.1 if is_bounded else 0.06
    assert steady.requests_per_second == pytest.approx(num_users / played.e2el.mean, rel=tolerance)
    assert (VLLM_FRONT_END.busy_share(free.requests_per_second, 128) > 1) is is_bounded
    assert (steady.ttft_seconds > 10 * free.ttft_seconds) is is_bounded
    assert steady.tpot_seconds == free.tpot_seconds


@pytest.mark.parametrize(
    ("version", "parses"),
    [
        ("0.6.4", False),
        ("0.6.5", True),
        ("0.9.1", True),
        ("0.9.2", False),
        ("0.10.2", False),
        ("0.11.0", True),
        ("0.11.1", False),
        ("latest", False),
    ],
)
def test_releases_that_parse_the_template_of_each_chat(version: str, parses: bool) -> None:
    release = vllm_release(version)
    plain = VLLM_FRONT_END if release.v1 else replace(VLLM_FRONT_END, away_seconds=0.0)
    assert vllm_front_end(release, chats=True).parsing_seconds == (VLLM_TEMPLATE_SECONDS if parses else 0)
    assert vllm_front_end(release, chats=False) == plain
    assert vllm_front_end(release, chats=True, model_type="gpt_oss") == plain  # rendered by openai_harmony


def test_a_request_with_its_tokens_costs_what_was_measured() -> None:
    """10,000 chats of 200 tokens in 131 s, and one token's request without parsing a third of one with it."""
    assert VLLM_FRONT_END.seconds(200) == pytest.approx(0.0131, rel=0.02)
    alone = VLLM_FRONT_END.seconds(1)
    assert 2.8 < (alone + VLLM_TEMPLATE_SECONDS) / alone < 3.2
