"""What a trial was asked: the engine's settings, and the requests it served."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kvplan.runs.columns.about import About


class SettingColumns(TypedDict, total=False):
    """Group ``settings``."""

    gpu_memory_utilization: Annotated[float, About("share of device memory the engine may use", "share")]
    max_num_seqs: Annotated[int, About("maximum number of sequences in one step", "sequences")]
    block_size: Annotated[int, About("tokens per KV block", "tokens")]
    max_model_len: Annotated[int, About("maximum sequence length, prompt plus output", "tokens")]
    max_num_batched_tokens: Annotated[int, About("maximum number of tokens in one step", "tokens")]
    kv_cache_memory_bytes: Annotated[
        int | None, About("size of the KV pool, where it was given instead of following", "bytes")
    ]
    quantization: Annotated[
        str | None,
        About("weight format asked for: auto (as stored), none (all in dtype), or what plain weights are rounded to"),
    ]
    group_size: Annotated[
        int | None, About("weights that share a scale; -1: all of an output, empty: the format's own", "weights")
    ]
    max_loras: Annotated[
        int | None, About("slots for LoRA adapters; the requests use as many, of random weights", "adapters")
    ]
    max_lora_rank: Annotated[int | None, About("rank of the slots, and of these adapters")]
    tensor_parallel_size: Annotated[int, About("devices the model is sharded over", "devices")]
    pipeline_parallel_size: Annotated[
        int | None, About("stages that share the layers, each of as many devices", "stages")
    ]
    enable_expert_parallel: Annotated[
        bool | None, About("whether devices have whole experts of a mixture instead of slices of each")
    ]
    num_speculative_tokens: Annotated[
        int | None, About("most draft tokens of a sequence in one step; 0: no speculation", "tokens")
    ]
    speculative_config: Annotated[
        str | None, About("who drafts them, the JSON that the engine was given; empty without speculation")
    ]
    data_parallel_size: Annotated[
        int | None,
        About(
            "of a server: engines that it tells of, each with these settings; tokens and blocks are of all together",
            "engines",
        ),
    ]
    device_memory_bytes: Annotated[int, About("the device's total memory", "bytes")]


class WorkloadColumns(TypedDict, total=False):
    """Group ``workload``."""

    workload: Annotated[str, About("the requests, summarized in one line")]
    num_prompts: Annotated[int, About("requests per trial", "requests")]
    request_rate: Annotated[
        float | str, About("arrivals per second, of a trace on average; inf: all at once; 1..8: growing", "requests/s")
    ]
    burstiness: Annotated[
        float | str, About("shape of the gamma-distributed gaps between arrivals; 1: Poisson, inf: equal gaps")
    ]
    max_concurrency: Annotated[int | None, About("maximum number of requests in flight; empty: no limit", "requests")]
    users: Annotated[int | None, About("users of a closed loop, each with one request at a time")]
    think_time: Annotated[float | None, About("a user's mean pause between answer and request", "s")]
    num_warmups: Annotated[int | None, About("requests of the same load before the measured ones")]
    endpoint: Annotated[str | None, About("completions or chat")]
    num_clipped_prompts: Annotated[
        int, About("requests shortened so that prompt + output fit into max_model_len", "requests")
    ]
