"""The columns of a sweep's rows: one declaration of every column's name, type, unit, group and description.

``Row`` is that declaration. results.csv, the manifest, the documentation and the reports take names, units and
descriptions from it, and mypy checks the keys and types of every row against it. A stored row has all columns, with
None where a figure does not exist; a part of a row, such as the one a worker measures, has some of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypedDict, get_type_hints


@dataclass(frozen=True, slots=True)
class About:
    """What stands beside a column's type: the group it is shown in, its description, and its unit ('' for none)."""

    group: str
    description: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name (vLLM's where vLLM has one), unit, group and description."""

    name: str
    unit: str
    group: str
    description: str


_LATENCIES: Final = {
    "ttft": "time to first token: first token minus the request's arrival",
    "tpot": "time per output token of one request: (latency - TTFT) / (output tokens - 1)",
    "itl": "inter-token latency: all gaps between consecutive tokens, pooled over requests",
    "e2el": "end-to-end latency: last token minus the request's arrival",
}
_STATISTICS: Final = {
    "mean": "mean",
    "median": "median",
    "std": "standard deviation",
    "p90": "90th percentile",
    "p99": "99th percentile",
}


def _latency(statistic: str, latency: str) -> About:
    return About("latency", f"{_STATISTICS[statistic]} of {_LATENCIES[latency]}", unit="ms")


class Row(TypedDict, total=False):
    """One trial. A new column is one more line here; see docs/how-to/add-a-report-column.md."""

    run_id: Annotated[str, About("identity", "the sweep this row belongs to")]
    trial_id: Annotated[
        str, About("identity", "hash of settings, load and run number: equal trials have equal ids in every sweep")
    ]
    trial_number: Annotated[int, About("identity", "position in the sweep, from 1")]
    planes: Annotated[
        str,
        About(
            "identity",
            "parts of the design this trial belongs to, separated by ';': grid, throughput, memory, probe, audit, slo",
        ),
    ]
    model_id: Annotated[str, About("identity", "the model as the catalog names it")]
    device: Annotated[str, About("identity", "cpu or cuda")]
    device_name: Annotated[str, About("identity", "processor or GPU as the driver names it")]
    node: Annotated[str | None, About("identity", "host name of the machine that ran the trial")]
    engine: Annotated[
        str | None, About("identity", "what served: kvplan, vllm, sglang, llamacpp or trtllm; empty: kvplan")
    ]
    engine_version: Annotated[str | None, About("identity", "version of the engine")]
    url: Annotated[str | None, About("identity", "address of the server that was loaded; empty: no server")]
    dtype: Annotated[str, About("identity", "storage type of weights and activations")]
    kv_cache_dtype: Annotated[str, About("identity", "storage type of the KV cache")]
    load_format: Annotated[
        str,
        About("identity", "format of the weights; dummy: random weights; none: only counted, so there are no speeds"),
    ]
    dummy_layers: Annotated[
        str | None, About("identity", "shared: equal layers used the same dummy weights, accounted at their true size")
    ]
    model_impl: Annotated[
        str | None,
        About(
            "identity",
            "what computed the model: native, or transformers, with activations and speed measured, not predicted; "
            "empty: nothing, or another engine",
        ),
    ]
    activation_quantization: Annotated[
        str | None,
        About(
            "identity", "int8: what weights in few bits are multiplied with was rounded to 8 bits; empty: it was not"
        ),
    ]
    seed: Annotated[int, About("identity", "seed of the workload and of random weights")]
    run_number: Annotated[int, About("identity", "repetition of the same settings, from 1")]
    rerun_of: Annotated[int | None, About("identity", "run_number of the outlier that this run repeats")]
    rerun_reason: Annotated[str | None, About("identity", "why that run is an outlier")]
    started_at: Annotated[str, About("identity", "when the trial started", unit="UTC")]

    gpu_memory_utilization: Annotated[
        float, About("settings", "share of device memory the engine may use", unit="share")
    ]
    max_num_seqs: Annotated[int, About("settings", "maximum number of sequences in one step", unit="sequences")]
    block_size: Annotated[int, About("settings", "tokens per KV block", unit="tokens")]
    max_model_len: Annotated[int, About("settings", "maximum sequence length, prompt plus output", unit="tokens")]
    max_num_batched_tokens: Annotated[int, About("settings", "maximum number of tokens in one step", unit="tokens")]
    kv_cache_memory_bytes: Annotated[
        int | None, About("settings", "size of the KV pool, where it was given instead of following", unit="bytes")
    ]
    quantization: Annotated[
        str | None,
        About(
            "settings",
            "weight format asked for: auto (as stored), none (all in dtype), or what plain weights are rounded to",
        ),
    ]
    group_size: Annotated[
        int | None,
        About("settings", "weights that share a scale; -1: all of an output, empty: the format's own", unit="weights"),
    ]
    max_loras: Annotated[
        int | None,
        About("settings", "slots for LoRA adapters; the requests use as many, of random weights", unit="adapters"),
    ]
    max_lora_rank: Annotated[int | None, About("settings", "rank of the slots, and of these adapters")]
    tensor_parallel_size: Annotated[int, About("settings", "devices the model is sharded over", unit="devices")]
    pipeline_parallel_size: Annotated[
        int | None, About("settings", "stages that share the layers, each of as many devices", unit="stages")
    ]
    enable_expert_parallel: Annotated[
        bool | None, About("settings", "whether devices have whole experts of a mixture instead of slices of each")
    ]
    data_parallel_size: Annotated[
        int | None,
        About(
            "settings",
            "of a server: engines that it tells of, each with these settings; tokens and blocks are of all together",
            unit="engines",
        ),
    ]
    device_memory_bytes: Annotated[int, About("settings", "the device's total memory", unit="bytes")]

    workload: Annotated[str, About("workload", "the requests, summarized in one line")]
    num_prompts: Annotated[int, About("workload", "requests per trial", unit="requests")]
    request_rate: Annotated[
        float | str, About("workload", "arrivals per second; inf: all at once; 1..8: growing", unit="requests/s")
    ]
    burstiness: Annotated[
        float | str,
        About("workload", "shape of the gamma-distributed gaps between arrivals; 1: Poisson, inf: equal gaps"),
    ]
    max_concurrency: Annotated[
        int | None, About("workload", "maximum number of requests in flight; empty: no limit", unit="requests")
    ]
    users: Annotated[int | None, About("workload", "users of a closed loop, each with one request at a time")]
    think_time: Annotated[float | None, About("workload", "a user's mean pause between answer and request", unit="s")]
    num_warmups: Annotated[int | None, About("workload", "requests of the same load before the measured ones")]
    endpoint: Annotated[str | None, About("workload", "completions or chat")]
    num_clipped_prompts: Annotated[
        int, About("workload", "requests shortened so that prompt + output fit into max_model_len", unit="requests")
    ]

    status: Annotated[str, About("status", "how the trial ended")]
    error: Annotated[
        str | None, About("status", "the reason in one sentence, for a trial that did not serve its requests")
    ]
    oom_phase: Annotated[str | None, About("status", "weights, kv_init, kv_host, graph_capture or runtime")]
    oom_requested_bytes: Annotated[int | None, About("status", "size of the allocation that failed", unit="bytes")]
    oom_free_bytes: Annotated[int | None, About("status", "memory free at that moment", unit="bytes")]
    largest_max_model_len: Annotated[
        int | None,
        About(
            "status",
            "the largest max_model_len this pool would accept, where the requested one was rejected",
            unit="tokens",
        ),
    ]
    num_restarts: Annotated[
        int | None, About("status", "times the trial was restarted because something else killed its worker")
    ]
    num_lost_workers: Annotated[
        int | None,
        About("status", "times the trial went to another worker of the cluster because its own, or its node, was lost"),
    ]

    duration: Annotated[float | None, About("throughput", "first arrival to last token", unit="s")]
    completed: Annotated[int | None, About("throughput", "requests served to completion", unit="requests")]
    failed: Annotated[int | None, About("throughput", "requests refused or aborted", unit="requests")]
    total_input_tokens: Annotated[
        int | None, About("throughput", "prompt tokens of the completed requests", unit="tokens")
    ]
    total_output_tokens: Annotated[
        int | None, About("throughput", "generated tokens of the completed requests", unit="tokens")
    ]
    request_throughput: Annotated[float | None, About("throughput", "completed / duration", unit="requests/s")]
    output_throughput: Annotated[
        float | None,
        About(
            "throughput",
            "total_output_tokens / duration; after warm-up requests: all tokens that came within it / duration",
            unit="tokens/s",
        ),
    ]
    total_token_throughput: Annotated[
        float | None, About("throughput", "(total_input_tokens + total_output_tokens) / duration", unit="tokens/s")
    ]
    max_concurrent_requests: Annotated[
        int | None, About("throughput", "peak number of requests in flight", unit="requests")
    ]

    mean_ttft_ms: Annotated[float | None, _latency("mean", "ttft")]
    median_ttft_ms: Annotated[float | None, _latency("median", "ttft")]
    std_ttft_ms: Annotated[float | None, _latency("std", "ttft")]
    p90_ttft_ms: Annotated[float | None, _latency("p90", "ttft")]
    p99_ttft_ms: Annotated[float | None, _latency("p99", "ttft")]
    mean_tpot_ms: Annotated[float | None, _latency("mean", "tpot")]
    median_tpot_ms: Annotated[float | None, _latency("median", "tpot")]
    std_tpot_ms: Annotated[float | None, _latency("std", "tpot")]
    p90_tpot_ms: Annotated[float | None, _latency("p90", "tpot")]
    p99_tpot_ms: Annotated[float | None, _latency("p99", "tpot")]
    mean_itl_ms: Annotated[float | None, _latency("mean", "itl")]
    median_itl_ms: Annotated[float | None, _latency("median", "itl")]
    std_itl_ms: Annotated[float | None, _latency("std", "itl")]
    p90_itl_ms: Annotated[float | None, _latency("p90", "itl")]
    p99_itl_ms: Annotated[float | None, _latency("p99", "itl")]
    mean_e2el_ms: Annotated[float | None, _latency("mean", "e2el")]
    median_e2el_ms: Annotated[float | None, _latency("median", "e2el")]
    std_e2el_ms: Annotated[float | None, _latency("std", "e2el")]
    p90_e2el_ms: Annotated[float | None, _latency("p90", "e2el")]
    p99_e2el_ms: Annotated[float | None, _latency("p99", "e2el")]

    mean_sent_ttft_ms: Annotated[
        float | None, About("latency", "mean time to first token from sending, not from the schedule", unit="ms")
    ]
    p99_sent_ttft_ms: Annotated[float | None, About("latency", "99th percentile of the same", unit="ms")]

    client_bound: Annotated[bool | None, About("client", "whether the load's client was the limit, not the server")]
    dispatch_delay_p99_ms: Annotated[
        float | None, About("client", "how late the client began requests, 99th percentile", unit="ms")
    ]
    loop_lag_p99_ms: Annotated[
        float | None, About("client", "how late the client's event loop woke, 99th percentile", unit="ms")
    ]
    client_cpu_pct: Annotated[float | None, About("client", "CPU time of the client / duration, of one core", unit="%")]
    client_ceiling: Annotated[
        float | None,
        About("client", "tokens it reads from a server that answers at once", unit="tokens/s"),
    ]
    token_source: Annotated[
        str | None, About("client", "what told the number of tokens: continuous_usage, token_ids or usage (at the end)")
    ]
    chunks_per_token: Annotated[
        float | None, About("client", "chunks with output / output tokens; below 0.95 there is no ITL")
    ]

    bound_by: Annotated[str | None, About("server", "what bound the run: kv, seats, compute, load or client")]
    queue_p95: Annotated[
        float | None,
        About("server", "95th percentile of the time in the server's queue, from its histogram", unit="s"),
    ]
    server_mean_queue_ms: Annotated[float | None, About("server", "mean time in its queue", unit="ms")]
    server_mean_ttft_ms: Annotated[float | None, About("server", "mean time to first token by its clock", unit="ms")]
    server_mean_itl_ms: Annotated[float | None, About("server", "mean inter-token latency by its clock", unit="ms")]
    server_mean_e2el_ms: Annotated[float | None, About("server", "mean end-to-end latency by its clock", unit="ms")]
    kv_cache_tokens: Annotated[int | None, About("server", "tokens its KV pool holds, as it says", unit="tokens")]
    kv_cache_tokens_predicted: Annotated[
        int | None,
        About("server", "kv_cache_tokens predicted before the start", unit="tokens"),
    ]
    start_seconds: Annotated[
        float | None,
        About("server", "from its command, or its fork, to its first answer; empty: it ran already", unit="s"),
    ]
    reused_server: Annotated[
        bool | None, About("server", "true if the server of the trial before served this one too; empty: no server")
    ]
    preloaded_server: Annotated[
        bool | None,
        About("server", "true if it was forked from a process with the engine's imports, not in start_seconds"),
    ]

    block_bytes: Annotated[
        int | None, About("kv", "K and V of one block over all layers, as allocated by the engine", unit="bytes")
    ]
    block_bytes_predicted: Annotated[
        int, About("kv", "block_bytes predicted from the model config alone", unit="bytes")
    ]
    num_blocks_total: Annotated[int | None, About("kv", "blocks in the engine's pool", unit="blocks")]
    num_blocks_predicted: Annotated[
        int | None, About("kv", "num_blocks_total predicted from config and settings alone", unit="blocks")
    ]
    kv_pool_bytes: Annotated[int | None, About("kv", "size of the KV pool", unit="bytes")]
    kv_usage_mean: Annotated[float | None, About("kv", "used blocks / blocks, mean over time", unit="share")]
    kv_usage_p95: Annotated[float | None, About("kv", "used blocks / blocks, 95th percentile over time", unit="share")]
    kv_usage_max: Annotated[float | None, About("kv", "used blocks / blocks, maximum", unit="share")]
    internal_frag_bytes_mean: Annotated[
        float | None, About("kv", "allocated slots that hold no token, mean over time", unit="bytes")
    ]
    frag_pct: Annotated[
        float | None,
        About("kv", "KV waste: empty slots of allocated blocks / allocated slots, weighted by time", unit="%"),
    ]
    layout_waste_pct: Annotated[
        float | None,
        About(
            "kv",
            "layout waste: blocks that decoding sequences hold / what the model's layers keep of these tokens, less "
            "one (padding of unlike layers, tokens that left a window), mean over steps",
            unit="%",
        ),
    ]
    contiguous_utilization_pct: Annotated[
        float | None,
        About(
            "kv", "share of KV memory that would hold tokens if every running sequence reserved max_model_len", unit="%"
        ),
    ]
    num_preemptions: Annotated[int | None, About("kv", "times a running sequence lost its blocks")]
    recomputed_tokens: Annotated[int | None, About("kv", "tokens recomputed after a preemption", unit="tokens")]
    max_running: Annotated[int | None, About("kv", "maximum number of sequences in one step", unit="sequences")]
    max_waiting: Annotated[int | None, About("kv", "maximum number of waiting sequences", unit="sequences")]
    num_cached_tokens: Annotated[
        int | None, About("kv", "prompt tokens taken from the prefix cache instead of being computed", unit="tokens")
    ]
    prefix_hit_rate: Annotated[
        float | None, About("kv", "prompt tokens found in the prefix cache / prompt tokens looked up", unit="share")
    ]

    weights_bytes: Annotated[
        int | None, About("memory", "size of the weights, with the slots of adapters", unit="bytes")
    ]
    weights_bytes_predicted: Annotated[
        int | None, About("memory", "weights_bytes predicted from config and settings alone", unit="bytes")
    ]
    adapter_bytes: Annotated[
        int | None, About("memory", "slots of LoRA adapters, a part of weights_bytes", unit="bytes")
    ]
    adapter_bytes_predicted: Annotated[
        int | None, About("memory", "adapter_bytes predicted from config and settings alone", unit="bytes")
    ]
    weights_origin: Annotated[
        str | None,
        About(
            "memory",
            "source of weights_bytes: loaded, counted (parameters x dtype, nothing was loaded) or predicted (the "
            "planner's size of a quantized checkpoint)",
        ),
    ]
    activation_bytes: Annotated[
        int | None, About("memory", "memory reserved for one step of the largest batch", unit="bytes")
    ]
    activation_peak_bytes: Annotated[
        int | None, About("memory", "memory the profile step at the largest batch actually used", unit="bytes")
    ]
    overhead_bytes: Annotated[int | None, About("memory", "memory reserved for everything else", unit="bytes")]
    graph_bytes: Annotated[
        int | None, About("memory", "memory reserved for captured CUDA graphs of steps", unit="bytes")
    ]
    budget_bytes: Annotated[int | None, About("memory", "device_memory_bytes x gpu_memory_utilization", unit="bytes")]
    peak_loading_bytes: Annotated[
        int | None,
        About(
            "memory",
            "peak physical memory while weights, workspace and pool were made, above what the process held before; of "
            "the trial that loaded the weights, on a CPU",
            unit="bytes",
        ),
    ]
    peak_allocated_bytes: Annotated[
        int | None,
        About(
            "memory",
            "peak memory in use: pages touched since the process started (CPU), tensor bytes (CUDA)",
            unit="bytes",
        ),
    ]
    peak_reserved_bytes: Annotated[
        int | None,
        About(
            "memory",
            "peak memory held: private mappings since the process started (CPU), reserved by the allocator (CUDA)",
            unit="bytes",
        ),
    ]

    predicted_status: Annotated[str | None, About("prediction", "status expected before the trial")]
    pred_max_concurrency: Annotated[
        int | None,
        About(
            "prediction",
            "peak number of running sequences, predicted from request lengths and pool size alone",
            unit="sequences",
        ),
    ]
    meas_max_concurrency: Annotated[
        int | None, About("prediction", "peak number of running sequences, measured", unit="sequences")
    ]
    pred_error_pct: Annotated[
        float | None,
        About("prediction", "(pred_max_concurrency - meas_max_concurrency) / meas_max_concurrency", unit="%"),
    ]
    pred_output_throughput: Annotated[
        float | None, About("prediction", "output throughput expected before the trial", unit="tokens/s")
    ]
    pred_median_ttft_ms: Annotated[
        float | None, About("prediction", "median time to first token expected before the trial", unit="ms")
    ]
    pred_median_tpot_ms: Annotated[
        float | None, About("prediction", "median time per output token expected before the trial", unit="ms")
    ]
    pred_median_itl_ms: Annotated[
        float | None, About("prediction", "median inter-token latency expected before the trial", unit="ms")
    ]
    prediction_origin: Annotated[
        str | None,
        About(
            "prediction",
            "source of the expected speeds, empty without any: measured (profile fitted to this model on this device), "
            "calibrated (to another model on this device) or roofline (estimated)",
        ),
    ]
    prediction_scale: Annotated[
        float, About("prediction", "factor applied to the expected times, learned from earlier trials")
    ]
    predicted_seconds: Annotated[float, About("prediction", "expected serving time", unit="s")]

    request_goodput: Annotated[
        float | None, About("slo", "requests that met every objective / duration", unit="requests/s")
    ]
    goodput_pct: Annotated[float | None, About("slo", "share of requests that met every objective", unit="%")]
    slo_pass: Annotated[
        bool | None, About("slo", "true if the p99 of every objective is within its bound and no request failed")
    ]
    usd_per_mtok_out: Annotated[
        float | None,
        About("slo", "price of a million output tokens at this throughput, if the device's price is known", unit="USD"),
    ]

    setup_seconds: Annotated[
        float | None,
        About("time", "time to set up workspace and pool (and to load the weights, where needed)", unit="s"),
    ]
    trial_seconds: Annotated[float, About("time", "the whole trial, measured by the parent process", unit="s")]
    num_steps: Annotated[int | None, About("time", "engine steps while serving", unit="steps")]
    other_cpu_pct: Annotated[
        float | None,
        About("time", "share of the machine's CPU time used by other processes during the trial", unit="%"),
    ]
    gpu_clock_mean_mhz: Annotated[
        float | None, About("time", "mean GPU clock during the trial, sampled a few times per second", unit="MHz")
    ]
    gpu_clock_min_mhz: Annotated[float | None, About("time", "lowest of these readings", unit="MHz")]
    gpu_clock_pct: Annotated[float | None, About("time", "mean GPU clock in percent of its maximum clock", unit="%")]


def _columns() -> tuple[Column, ...]:
    columns = []
    for name, hint in get_type_hints(Row, include_extras=True).items():
        (about,) = hint.__metadata__
        columns.append(Column(name, about.unit, about.group, about.description))
    return tuple(columns)


COLUMNS: Final[tuple[Column, ...]] = _columns()
COLUMN_NAMES: Final[tuple[str, ...]] = tuple(column.name for column in COLUMNS)


def columns_as_json() -> list[dict[str, str]]:
    """The list for the manifest."""
    return [
        {"name": column.name, "unit": column.unit, "group": column.group, "description": column.description}
        for column in COLUMNS
    ]
