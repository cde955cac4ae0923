"""Where the device's memory went: blocks of the KV cache and what they held, weights, activations, peaks."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kvplan.runs.columns.about import About


class KvColumns(TypedDict, total=False):
    """Group ``kv``."""

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
    kv_waste_pct: Annotated[
        float | None,
        About("kv", "KV waste: empty slots of allocated blocks / allocated slots, weighted by time", unit="%"),
    ]
    frag_pct: Annotated[float | None, About("kv", "kv_waste_pct under its earlier name, fragmentation", unit="%")]
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


class MemoryColumns(TypedDict, total=False):
    """Group ``memory``."""

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
