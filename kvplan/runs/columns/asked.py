"""What a trial was asked: the engine's settings, and the requests it served."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kvplan.runs.columns.about import About


class SettingColumns(TypedDict, total=False):
    """Group ``settings``."""

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
    num_speculative_tokens: Annotated[
        int | None, About("settings", "most draft tokens of a sequence in one step; 0: no speculation", unit="tokens")
    ]
    speculative_config: Annotated[
        str | None, About("settings", "who drafts them, the JSON that the engine was given; empty without speculation")
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


class WorkloadColumns(TypedDict, total=False):
    """Group ``workload``."""

    workload: Annotated[str, About("workload", "the requests, summarized in one line")]
    num_prompts: Annotated[int, About("workload", "requests per trial", unit="requests")]
    request_rate: Annotated[
        float | str,
        About(
            "workload", "arrivals per second, of a trace on average; inf: all at once; 1..8: growing", unit="requests/s"
        ),
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
