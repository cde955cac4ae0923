"""llama.cpp's adapter: command lines, start-up logs and failures as recorded from its server."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.engines.interface import Ending, EngineAdapter, Failure, StartOrder
from kvplan.engines.llamacpp.adapter import LlamaCpp
from kvplan.engines.rows import usage_of_tokens
from kvplan.errors import KvplanError, UsageError
from kvplan.machine.device import Device
from kvplan.metrics.reading import ServerReading
from kvplan.runs.trials import TrialSettings
from kvplan.units import GIB, MIB
from kvplan.workload.lengths import Lengths
from kvplan.workload.requests import WorkloadSpec, generate_requests

LOGS = Path(__file__).resolve().parents[1] / "data" / "engine_outputs" / "llamacpp"
SETTINGS = TrialSettings(
    gpu_memory_utilization=0.9, max_num_seqs=4, block_size=16, max_model_len=300, max_num_batched_tokens=512
)
UP = LlamaCpp((sys.executable, "-c", "print('version: 6000 (abcdef)')"))
DEVICE = Device("cpu", "a CPU", 4 * GIB, 2)


def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


def failed(name: str, exit_code: int | None = 1) -> Failure:
    return LlamaCpp().failure(Ending("starting", exit_code, log(name)))


def order(settings: TrialSettings = SETTINGS, load_format: str = "auto") -> StartOrder:
    return StartOrder("/models/m.gguf", settings, 8123, Path("/nowhere"), load_format)


def after(words: tuple[str, ...], option: str) -> str:
    return words[words.index(option) + 1]


def test_slots_hold_whole_paddings() -> None:
    words = LlamaCpp(("llama-server",)).command(order()).argv
    assert words[0] == "llama-server"
    assert (after(words, "--parallel"), after(words, "--ctx-size")) == ("4", str(4 * 512))
    assert (after(words, "--port"), after(words, "--host"), after(words, "--alias")) == ("8123", "127.0.0.1", "model")
    assert {"--metrics", "--slots"} <= set(words)


def test_an_engine_argument_goes_before_what_the_sweep_would_say() -> None:
    adapter = LlamaCpp(given={"ctk": "q8_0", "kv-unified": "", "ctx-size": "1024"})
    words = adapter.command(order()).argv
    assert (after(words, "--cache-type-k"), after(words, "--ctx-size")) == ("q8_0", "1024")
    assert "--kv-unified" in words
    assert words.count("--ctx-size") == 1


def test_a_kv_dtype_is_its_cache_type() -> None:
    words = LlamaCpp().command(order(SETTINGS.with_changes(kv_cache_dtype="bfloat16"))).argv
    assert (after(words, "--cache-type-k"), after(words, "--cache-type-v")) == ("bf16", "bf16")
    with pytest.raises(UsageError, match="no KV cache of fp8"):
        LlamaCpp().command(order(SETTINGS.with_changes(kv_cache_dtype="fp8")))


def test_prefixes_are_not_kept_where_they_shall_not_be() -> None:
    words = LlamaCpp().command(order(SETTINGS.with_changes(enable_prefix_caching=False))).argv
    assert "--no-cache-prompt" in words


@pytest.mark.parametrize("name", ["port", "host", "model", "alias"])
def test_what_the_sweep_sets_cannot_be_given(name: str) -> None:
    with pytest.raises(UsageError, match=f"--engine-arg {name} is set by the sweep"):
        LlamaCpp(given={name: "1"}).command(order())


def test_random_weights_do_not_exist() -> None:
    with pytest.raises(KvplanError, match="no random weights"):
        LlamaCpp().command(order(load_format="dummy"))


def test_a_start_with_slots_is_read() -> None:
    found = UP.started(log("start-slots"), None)
    assert (found.kv_cache_tokens, found.num_blocks, found.block_size) == (2048, 2048, 1)
    assert found.kv_pool_bytes == 45 * MIB
    assert found.weights_bytes == round(92.10 * MIB)
    assert found.activation_bytes == round(15.14 * MIB)
    assert found.overhead_bytes == round(0.75 * MIB)
    assert found.kv_cache_dtype == "float16"
    assert found.version == "6000"
    assert found.max_concurrency == 4
    assert found.resolved == {"max_num_seqs": 4, "max_model_len": 512}


def test_a_unified_start_is_one_pool_with_shorter_slots() -> None:
    found = UP.started(log("start-unified"), None)
    assert found.kv_cache_tokens == 1024
    assert found.resolved == {"max_num_seqs": 4, "max_model_len": 300}


def test_windows_add_bytes_but_no_tokens() -> None:
    found = UP.started(log("start-gemma-3-unified"), None)
    assert found.kv_cache_tokens == 4096
    assert found.kv_pool_bytes == round(12.00 * MIB) + round(37.50 * MIB)


def test_figures_of_an_earlier_release_are_read() -> None:
    # As in ikawrakow/ik_llama.cpp pull request 235 and llama.cpp before May 2025.
    text = "llama_new_context_with_model: n_seq_max  = 1\nllama_new_context_with_model: n_ctx      = 4096\n"
    text += "llama_kv_cache_init:      CUDA0 KV buffer size =   512.00 MiB\n"
    text += "llama_new_context_with_model: KV self size  =  512.00 MiB, K (f16):  256.00 MiB, V (f16):  256.00 MiB\n"
    found = UP.started(text, None)
    assert (found.kv_cache_tokens, found.kv_pool_bytes) == (4096, 512 * MIB)


def test_weights_that_do_not_fit() -> None:
    failure = failed("no-memory-for-weights")
    assert (failure.status, failure.oom_phase, failure.oom_requested_bytes) == ("oom_weights", "weights", 96_576_768)
    assert failure.error == ("The weights do not fit: an allocation of 92.10 MiB failed. Take a smaller quantization.")


@pytest.mark.parametrize(
    ("name", "what", "requested"),
    [
        ("no-memory-for-kv", "The KV cache does not fit", 754_974_720),
        ("context-beyond-memory", "The KV cache does not fit", 2_304_000_000_000),
        ("no-memory-for-graph", "The compute buffers do not fit", round(41.96 * MIB)),
    ],
)
def test_a_cache_that_does_not_fit(name: str, what: str, requested: int) -> None:
    failure = failed(name)
    assert (failure.status, failure.oom_phase) == ("oom_kv_init", "kv_init")
    assert failure.oom_requested_bytes == requested
    assert failure.error.startswith(what)


def test_a_gpu_out_of_memory() -> None:
    weights = "\n".join(  # ggml-org/llama.cpp issue 20431
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 144817.04 MiB on device 0: cudaMalloc failed: out "
            "of memory",
            "alloc_tensor_range: failed to allocate CUDA0 buffer of size 151851674624",
            "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
        )
    )
    failure = LlamaCpp().failure(Ending("starting", 1, weights))
    assert (failure.status, failure.oom_requested_bytes) == ("oom_weights", 151_851_674_624)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("not-a-model", "The model is not a GGUF file."),
        ("no-such-file", "The model /nonexistent.gguf cannot be opened (No such file or directory)."),
        (
            "truncated",
            "The model's file is damaged: tensor 'blk.16.ffn_down.weight' data is not within the file bounds, model is "
            "corrupted or incomplete.",
        ),
        ("too-many-slots", "It has at most 256 slots (max_num_seqs)."),
        ("port-taken", "Port 18931 is taken by another process."),
        ("unknown-option", "It knows no option --frobnicate: this release may be older or newer than expected."),
        ("unknown-cache-type", "It refuses an option: Unsupported cache type: q9_9."),
        (
            "quantized-without-flash-attention",
            "A quantized V cache needs flash attention: --engine-arg flash-attn=on.",
        ),
    ],
)
def test_refusals_say_why(name: str, sentence: str) -> None:
    failure = failed(name)
    assert (failure.status, failure.error, failure.oom_phase) == ("crash", sentence, None)
    assert failure.stops_sweep is name.startswith("unknown-")


def test_a_crash_has_the_last_error() -> None:
    failure = failed("no-memory-for-threads", exit_code=-signal.SIGABRT)
    assert failure.status == "crash"
    assert failure.error == "llama-server ended (signal 6): what():  Resource temporarily unavailable"


def test_killed_by_someone_or_by_the_kernel() -> None:
    text = log("start-slots")
    killed = LlamaCpp().failure(Ending("serving", -signal.SIGKILL, text))
    assert killed == Failure("crash", "llama-server was killed by signal 9 (SIGKILL).")
    out_of_memory = LlamaCpp().failure(Ending("serving", -signal.SIGKILL, text, out_of_host_memory=True))
    assert (out_of_memory.status, out_of_memory.oom_phase) == ("oom_runtime", "runtime")


def test_an_allocation_that_was_recovered_at_the_start_is_no_cause_later() -> None:
    text = "E graph_reserve: failed to allocate compute buffers\nI srv  llama_server: model loaded\nlater\n"
    assert LlamaCpp().failure(Ending("serving", -signal.SIGSEGV, text)).status == "crash"


def test_a_cache_of_given_bytes_is_shared(smollm2_file: Path) -> None:
    settings = SETTINGS.with_changes(kv_cache_memory_bytes=23 * MIB)
    ordered = StartOrder(str(smollm2_file), settings, 8123, Path("/nowhere"))
    words = LlamaCpp().command(ordered).argv
    assert (after(words, "--ctx-size"), after(words, "--kv-unified-per-slot")) == ("1024", "300")
    assert "--kv-unified" in words
    pool = LlamaCpp().model(resolve_model(str(smollm2_file)), DEVICE).memory(settings)
    assert (pool.kv_cache_tokens, pool.largest_context) == (1024, 300)  # as start-unified.log has it
    assert pool.block_bytes * pool.num_blocks <= 23 * MIB


def test_the_settings_of_a_sweep_that_names_none(smollm2_file: Path) -> None:
    model = LlamaCpp().model(resolve_model(str(smollm2_file)), DEVICE)
    base = model.base_settings(generate_requests(WorkloadSpec(2, Lengths(16, 64), Lengths(8, 8))), None)
    assert (base.max_num_seqs, base.block_size, base.max_num_batched_tokens) == (4, 1, 2048)
    assert model.memory(base).outcome == "ok"
    assert model.default_axes(base) == {"max_num_seqs": (1, 4, 8, 16)}


def test_prediction_is_of_the_command_line(smollm2_file: Path) -> None:
    spec = resolve_model(str(smollm2_file))
    pool = LlamaCpp().model(spec, DEVICE).memory(SETTINGS)
    assert (pool.outcome, pool.kv_cache_tokens, pool.largest_context) == ("ok", 2048, 512)
    assert pool.block_bytes * pool.num_blocks == 45 * MIB
    shared = LlamaCpp(given={"kv-unified": "", "ctx-size": "256"}).model(spec, DEVICE).memory(SETTINGS)
    assert (shared.outcome, shared.kv_cache_tokens) == ("rejected_ctx", 256)


@pytest.mark.parametrize(("memory", "outcome"), [(64 * MIB, "oom_weights"), (140 * MIB, "oom_kv_init"), (GIB, "ok")])
def test_prediction_of_what_does_not_fit(memory: int, outcome: str, smollm2_file: Path) -> None:
    device = Device("cpu", "a CPU", memory, 2)
    assert LlamaCpp().model(resolve_model(str(smollm2_file)), device).memory(SETTINGS).outcome == outcome


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(KvplanError, match="'/nowhere/llama-server' cannot be run"):
        LlamaCpp(("/nowhere/llama-server",)).identify()


def test_an_installation_tells_version_and_devices() -> None:
    # What b11434 built for a CPU prints, and a device as a CUDA build lists it.
    text = "version: 0.6.0-dev (build 0, commit unknown)\\nAvailable devices:\\n  (none)"
    installation = LlamaCpp((sys.executable, "-c", f"print('{text}')")).identify()
    assert (installation.version, installation.device) == ("0.6.0-dev", "cpu")
    text = "version: 6000 (abc)\\nAvailable devices:\\n  CUDA0: NVIDIA GeForce RTX 4090 (24217 MiB, 23000 MiB free)"
    assert LlamaCpp((sys.executable, "-c", f"print('{text}')")).identify().device == "cuda"


def test_tokens_in_slots_are_a_share_of_all_cells() -> None:
    readings = [ServerReading("llamacpp", 0.0, kv_cache_used_tokens=used) for used in (None, 256.0, 768.0)]
    assert usage_of_tokens(readings, 1024) == {"kv_usage_mean": 0.5, "kv_usage_max": 0.75}
    assert usage_of_tokens(readings[:1], 1024) == {}


def test_it_is_an_adapter() -> None:
    adapter: EngineAdapter = LlamaCpp()
    assert adapter.name == "llamacpp"
    assert {"max_num_seqs", "max_model_len"} <= adapter.axes
