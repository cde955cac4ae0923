"""A load over HTTP: what its client could not keep up with, and what the server said of itself."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kvplan.runs.columns.about import About


class ClientColumns(TypedDict, total=False):
    """Group ``client``."""

    client_bound: Annotated[bool | None, About("whether the load's client was the limit, not the server")]
    dispatch_delay_p99_ms: Annotated[float | None, About("how late the client began requests, 99th percentile", "ms")]
    loop_lag_p99_ms: Annotated[float | None, About("how late the client's event loop woke, 99th percentile", "ms")]
    client_cpu_pct: Annotated[float | None, About("CPU time of the client / duration, of one core", "%")]
    client_ceiling: Annotated[float | None, About("tokens it reads from a server that answers at once", "tokens/s")]
    token_source: Annotated[
        str | None, About("what told the number of tokens: continuous_usage, token_ids or usage (at the end)")
    ]
    chunks_per_token: Annotated[float | None, About("chunks with output / output tokens; below 0.95 there is no ITL")]


class ServerColumns(TypedDict, total=False):
    """Group ``server``."""

    bound_by: Annotated[str | None, About("what bound the run: kv, seats, compute, load or client")]
    queue_p95: Annotated[
        float | None, About("95th percentile of the time in the server's queue, from its histogram", "s")
    ]
    server_mean_queue_ms: Annotated[float | None, About("mean time in its queue", "ms")]
    server_mean_ttft_ms: Annotated[float | None, About("mean time to first token by its clock", "ms")]
    server_mean_itl_ms: Annotated[float | None, About("mean inter-token latency by its clock", "ms")]
    server_mean_e2el_ms: Annotated[float | None, About("mean end-to-end latency by its clock", "ms")]
    kv_cache_tokens: Annotated[
        int | None,
        About("tokens its KV pool holds, as the engine counts them: in sequences of max_model_len", "tokens"),
    ]
    kv_cache_tokens_predicted: Annotated[int | None, About("kv_cache_tokens predicted before the start", "tokens")]
    kv_cache_tokens_vllm: Annotated[
        int | None, About("tokens that vLLM prints for a pool of these bytes; only of GPUs that are counted", "tokens")
    ]
    start_seconds: Annotated[
        float | None, About("from its command, or its fork, to its first answer; empty: it ran already", "s")
    ]
    reused_server: Annotated[
        bool | None, About("true if the server of the trial before served this one too; empty: no server")
    ]
    preloaded_server: Annotated[
        bool | None, About("true if it was forked from a process with the engine's imports, not in start_seconds")
    ]
