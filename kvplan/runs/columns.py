"""The columns of a sweep's rows: one definition for results.csv, the manifest, the documentation and the reports.

What a run directory holds (all JSON is UTF-8; a figure that does not exist for a trial is ``null``, an empty cell in
the CSV):

``trials.jsonl``   one line per finished trial, in the order in which they ended::

    {"schema": "kvplan.trial/1",
     "row":    {column name: value, ...}                  every column below, none besides
     "series": {"seconds": [...], "kv_usage": [...], "num_running": [...], "num_waiting": [...],
                "used_tokens": [...], "cached_tokens": [...], "output_tokens_per_second": [...],
                "step_seconds": [...]}}

    ``series`` is the trial over time: equally long lists of at most 400 points, ``null`` for a trial that never ran.
    ``seconds`` starts at 0 with the first arrival; ``kv_usage`` is 0 to 1; ``used_tokens`` counts tokens whose K and V
    lie in the pool, ``cached_tokens`` those that prompts found in the prefix cache so far. ``step_seconds`` is the
    time that the point's steps took, without the waiting for arrivals between them.

``results.csv``    the rows alone, one column per entry below, in this order.
``manifest.json``  settings, versions, device, planes and this list of columns (name, unit, group, description).
``summary.json``   best settings, boundaries, KV waste, prediction errors.

A reader that must not import this package finds the same list under ``columns`` in the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TRIAL_SCHEMA: Final = "kvplan.trial/1"
MANIFEST_SCHEMA: Final = "kvplan.manifest/1"
SUMMARY_SCHEMA: Final = "kvplan.sweep/1"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name (vLLM's where vLLM has one), unit, the group it is shown in, and what it says."""

    name: str
    unit: str
    group: str
    description: str


def _latency_columns() -> list[Column]:
    meanings = {
        "ttft": "time to first token: first token minus the request's arrival",
        "tpot": "time per output token of one request: (latency - TTFT) / (output tokens - 1)",
        "itl": "inter-token latency: all gaps between consecutive tokens, pooled over requests",
        "e2el": "end-to-end latency: last token minus the request's arrival",
    }
    statistics = {
        "mean": "mean",
        "median": "median",
        "std": "standard deviation",
        "p90": "90th percentile",
        "p99": "99th percentile",
    }
    return [
        Column(f"{key}_{name}_ms", "ms", "latency", f"{word} of {meaning}")
        for name, meaning in meanings.items()
        for key, word in statistics.items()
    ]


COLUMNS: Final[tuple[Column, ...]] = (
    Column("run_id", "", "identity", "the sweep this row belongs to"),
    Column("trial_id", "", "identity", "hash of the trial's settings and run number; equal settings have equal ids"),
    Column("trial_number", "", "identity", "place in the sweep's order, from 1"),
    Column(
        "planes",
        "",
        "identity",
        "planes of the design this point belongs to, separated by ';': grid, throughput, memory, probe, audit, slo",
    ),
    Column("model_id", "", "identity", "the model as the catalog names it"),
    Column("device", "", "identity", "cpu or cuda"),
    Column("device_name", "", "identity", "processor or GPU as the driver names it"),
    Column("engine_version", "", "identity", "version of kvplan_engine"),
    Column("dtype", "", "identity", "storage type of weights and activations"),
    Column("kv_cache_dtype", "", "identity", "storage type of the KV cache"),
    Column("load_format", "", "identity", "where the weights came from (dummy: random weights)"),
    Column("seed", "", "identity", "seed of the workload and the weights"),
    Column("run_number", "", "identity", "repetition of the same settings, from 1"),
    Column("rerun_of", "", "identity", "number of the run that this one stands beside, because that one is an outlier"),
    Column("rerun_reason", "", "identity", "why the run in rerun_of is an outlier"),
    Column("started_at", "UTC", "identity", "when the trial started"),
    Column("gpu_memory_utilization", "share", "settings", "share of the device's memory that the engine may use"),
    Column("max_num_seqs", "sequences", "settings", "most sequences in one step"),
    Column("block_size", "tokens", "settings", "tokens of one KV block"),
    Column("max_model_len", "tokens", "settings", "longest sequence, prompt and output together"),
    Column("max_num_batched_tokens", "tokens", "settings", "most tokens in one step"),
    Column("tensor_parallel_size", "devices", "settings", "devices the model is split over"),
    Column("device_memory_bytes", "bytes", "settings", "the device's total memory"),
    Column("workload", "", "workload", "the requests in one line"),
    Column("num_prompts", "requests", "workload", "requests of one trial"),
    Column("request_rate", "requests/s", "workload", "arrivals per second; inf: all at once"),
    Column("burstiness", "", "workload", "shape of the gamma-distributed gaps between arrivals; 1: Poisson"),
    Column("max_concurrency", "requests", "workload", "most requests in flight; empty: no limit"),
    Column(
        "num_clipped_prompts", "requests", "workload", "requests shortened so that prompt + output fit max_model_len"
    ),
    Column("status", "", "status", "how the trial ended"),
    Column("error", "", "status", "the reason in one sentence, for a trial that was not served"),
    Column("oom_phase", "", "status", "weights, kv_init, graph_capture or runtime"),
    Column("oom_requested_bytes", "bytes", "status", "what was asked for when memory ran out"),
    Column("oom_free_bytes", "bytes", "status", "what was free then"),
    Column(
        "largest_max_model_len",
        "tokens",
        "status",
        "the longest max_model_len that this pool would accept, where it was refused",
    ),
    Column("num_restarts", "", "status", "times the trial was begun anew because its worker was killed from outside"),
    Column("duration", "s", "throughput", "first arrival to last token"),
    Column("completed", "requests", "throughput", "requests served to their end"),
    Column("failed", "requests", "throughput", "requests refused or broken off"),
    Column("total_input_tokens", "tokens", "throughput", "prompt tokens of the completed requests"),
    Column("total_output_tokens", "tokens", "throughput", "generated tokens of the completed requests"),
    Column("request_throughput", "requests/s", "throughput", "completed / duration"),
    Column("output_throughput", "tokens/s", "throughput", "total_output_tokens / duration"),
    Column("total_token_throughput", "tokens/s", "throughput", "(total_input_tokens + total_output_tokens) / duration"),
    Column("max_concurrent_requests", "requests", "throughput", "most requests in flight at once"),
    *_latency_columns(),
    Column("block_bytes", "bytes", "kv", "K and V of one block over all layers, as the engine allocated it"),
    Column("block_bytes_predicted", "bytes", "kv", "the same from the config alone, before the trial started"),
    Column("num_blocks_total", "blocks", "kv", "blocks in the engine's pool"),
    Column("num_blocks_predicted", "blocks", "kv", "the same from config and settings alone, before the trial started"),
    Column("kv_pool_bytes", "bytes", "kv", "bytes the engine gave the pool"),
    Column("kv_usage_mean", "share", "kv", "used blocks / blocks, mean over time"),
    Column("kv_usage_p95", "share", "kv", "used blocks / blocks, 95th percentile over time"),
    Column("kv_usage_max", "share", "kv", "used blocks / blocks, maximum"),
    Column("internal_frag_bytes_mean", "bytes", "kv", "allocated but empty slots, mean over time"),
    Column("frag_pct", "%", "kv", "KV waste: empty slots of allocated blocks / allocated slots, weighted by time"),
    Column(
        "contiguous_utilization_pct",
        "%",
        "kv",
        "share of the KV memory that would hold tokens if every running sequence reserved max_model_len",
    ),
    Column("num_preemptions", "", "kv", "times a running sequence lost its blocks"),
    Column("recomputed_tokens", "tokens", "kv", "tokens computed again after a preemption"),
    Column("max_running", "sequences", "kv", "most sequences in one step"),
    Column("max_waiting", "sequences", "kv", "most sequences waiting"),
    Column("num_cached_tokens", "tokens", "kv", "prompt tokens taken from the prefix cache instead of computed"),
    Column("prefix_hit_rate", "share", "kv", "prompt tokens found in the prefix cache / prompt tokens looked up"),
    Column("weights_bytes", "bytes", "memory", "the weights"),
    Column("activation_bytes", "bytes", "memory", "what the engine reserves for one step of the largest batch"),
    Column("activation_peak_bytes", "bytes", "memory", "what the profile step at the largest batch really used"),
    Column("overhead_bytes", "bytes", "memory", "what the engine sets aside for everything else"),
    Column("graph_bytes", "bytes", "memory", "what it keeps back for decode steps captured as graphs, on a GPU"),
    Column("budget_bytes", "bytes", "memory", "device_memory_bytes x gpu_memory_utilization"),
    Column(
        "peak_allocated_bytes",
        "bytes",
        "memory",
        "most memory in use: pages the process touched beyond its start (CPU), bytes of tensors (CUDA)",
    ),
    Column(
        "peak_reserved_bytes",
        "bytes",
        "memory",
        "most memory held: private mappings beyond the start, touched or not (CPU), the allocator's (CUDA)",
    ),
    Column("predicted_status", "", "prediction", "how the trial was expected to end"),
    Column(
        "pred_max_concurrency",
        "sequences",
        "prediction",
        "most sequences running at once, from lengths and the predicted pool alone",
    ),
    Column("meas_max_concurrency", "sequences", "prediction", "most sequences that ran at once"),
    Column("pred_error_pct", "%", "prediction", "(predicted - measured) / measured of the two before"),
    Column("pred_output_throughput", "tokens/s", "prediction", "output throughput expected before the trial"),
    Column("pred_median_ttft_ms", "ms", "prediction", "median time to first token expected before the trial"),
    Column("pred_median_tpot_ms", "ms", "prediction", "median time per output token expected before the trial"),
    Column("pred_median_itl_ms", "ms", "prediction", "median inter-token latency expected before the trial"),
    Column(
        "prediction_origin",
        "",
        "prediction",
        "where the expected speeds come from: measured (a profile fitted to this model on this device), "
        "calibrated (to another model on it) or roofline (guessed)",
    ),
    Column(
        "prediction_scale",
        "",
        "prediction",
        "what the expected times were multiplied by after the trials before this one",
    ),
    Column("predicted_seconds", "s", "prediction", "time that the trial was expected to take"),
    Column("request_goodput", "requests/s", "slo", "requests within the objectives / duration"),
    Column("goodput_pct", "%", "slo", "share of requests within the objectives"),
    Column("slo_pass", "", "slo", "true when the p99 of every objective holds"),
    Column(
        "usd_per_mtok_out",
        "USD",
        "slo",
        "price of a million output tokens at this throughput, where the device's price is known",
    ),
    Column(
        "setup_seconds", "s", "time", "new workspace and pool for this trial (and weights, where they had to be loaded)"
    ),
    Column("trial_seconds", "s", "time", "the whole trial as the parent saw it"),
    Column("num_steps", "steps", "time", "engine steps of the measured part"),
    Column("other_cpu_pct", "%", "time", "share of the machine's processor time that others took during the trial"),
    Column("gpu_clock_mean_mhz", "MHz", "time", "the GPU's clock during the trial, mean of some readings a second"),
    Column("gpu_clock_min_mhz", "MHz", "time", "the lowest of these readings"),
    Column("gpu_clock_pct", "%", "time", "their mean in percent of the highest clock that the GPU has"),
)

COLUMN_NAMES: Final[tuple[str, ...]] = tuple(column.name for column in COLUMNS)


def empty_row() -> dict[str, object]:
    """A row with every column and nothing known."""
    return dict.fromkeys(COLUMN_NAMES)


def columns_as_json() -> list[dict[str, str]]:
    """The list for the manifest."""
    return [
        {"name": column.name, "unit": column.unit, "group": column.group, "description": column.description}
        for column in COLUMNS
    ]
