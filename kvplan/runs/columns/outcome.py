"""How a trial ended, whether it met the service level, and the time it took."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kvplan.runs.columns.about import About


class StatusColumns(TypedDict, total=False):
    """Group ``status``."""

    status: Annotated[str, About("how the trial ended")]
    error: Annotated[str | None, About("the reason in one sentence, for a trial that did not serve its requests")]
    oom_phase: Annotated[str | None, About("weights, kv_init, kv_host, graph_capture or runtime")]
    oom_requested_bytes: Annotated[int | None, About("size of the allocation that failed", "bytes")]
    oom_free_bytes: Annotated[int | None, About("memory free at that moment", "bytes")]
    largest_max_model_len: Annotated[
        int | None,
        About("the largest max_model_len the engine would accept, where it rejected the requested one", "tokens"),
    ]
    context_limited_by: Annotated[
        str | None, About("why it accepts no more: pool, or model (its positions); empty where the engine does not say")
    ]
    num_restarts: Annotated[int | None, About("times the trial was restarted because something else killed its worker")]
    num_lost_workers: Annotated[
        int | None,
        About("times the trial went to another worker of the cluster because its own, or its node, was lost"),
    ]


class SloColumns(TypedDict, total=False):
    """Group ``slo``."""

    request_goodput: Annotated[float | None, About("requests that met every objective / duration", "requests/s")]
    goodput_pct: Annotated[float | None, About("share of requests that met every objective", "%")]
    slo_pass: Annotated[
        bool | None, About("true if the p99 of every objective is within its bound and no request failed")
    ]
    usd_per_mtok_out: Annotated[
        float | None,
        About("price of a million output tokens at this throughput, if the device's price is known", "USD"),
    ]


class SpeculationColumns(TypedDict, total=False):
    """Group ``speculation``."""

    num_drafts: Annotated[int | None, About("verifications of a sequence's drafts (vllm:spec_decode_num_drafts)")]
    num_draft_tokens: Annotated[int | None, About("draft tokens verified", "tokens")]
    num_accepted_tokens: Annotated[int | None, About("draft tokens accepted", "tokens")]
    acceptance_rate: Annotated[float | None, About("num_accepted_tokens / num_draft_tokens")]
    mean_acceptance_length: Annotated[
        float | None, About("1 + num_accepted_tokens / num_drafts, the token behind them included", "tokens")
    ]
    accepted_per_position: Annotated[
        str | None, About("share of the drafts whose first, second, ... token was accepted, separated by spaces")
    ]
    pred_speculation_gain: Annotated[
        float | None,
        About("times as many tokens a second while decoding, by a step's calibrated time, at the acceptance measured"),
    ]


class TimeColumns(TypedDict, total=False):
    """Group ``time``."""

    setup_seconds: Annotated[
        float | None, About("time to set up workspace and pool (and to load the weights, where needed)", "s")
    ]
    trial_seconds: Annotated[float, About("the whole trial, measured by the parent process", "s")]
    num_steps: Annotated[int | None, About("engine steps while serving", "steps")]
    other_cpu_pct: Annotated[
        float | None, About("share of the machine's CPU time used by other processes during the trial", "%")
    ]
    gpu_clock_mean_mhz: Annotated[
        float | None, About("mean GPU clock during the trial, sampled a few times per second", "MHz")
    ]
    gpu_clock_min_mhz: Annotated[float | None, About("lowest of these readings", "MHz")]
    gpu_clock_pct: Annotated[float | None, About("mean GPU clock in percent of its maximum clock", "%")]
