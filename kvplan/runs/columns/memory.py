"""Where the device's memory went: blocks of the KV cache and what they held, weights, activations, peaks."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kvplan.runs.columns.about import About


class KvColumns(TypedDict, total=False):
    """Group ``kv``."""

    block_bytes: Annotated[
        int | None, About("K and V of one block over all layers, as allocated by the engine", "bytes")
    ]
    block_bytes_predicted: Annotated[int, About("block_bytes predicted from the model config alone", "bytes")]
    num_blocks_total: Annotated[int | None, About("blocks in the engine's pool", "blocks")]
    num_blocks_predicted: Annotated[
        int | None, About("num_blocks_total predicted from config and settings alone", "blocks")
    ]
    kv_pool_bytes: Annotated[int | None, About("size of the KV pool", "bytes")]
    kv_usage_mean: Annotated[float | None, About("used blocks / blocks, mean over time", "share")]
    kv_usage_p95: Annotated[float | None, About("used blocks / blocks, 95th percentile over time", "share")]
    kv_usage_max: Annotated[float | None, About("used blocks / blocks, maximum", "share")]
    internal_frag_bytes_mean: Annotated[
        float | None, About("allocated slots that hold no token, mean over time", "bytes")
    ]
    kv_waste_pct: Annotated[
        float | None, About("KV waste: empty slots of allocated blocks / allocated slots, weighted by time", "%")
    ]
    frag_pct: Annotated[float | None, About("kv_waste_pct under its earlier name, fragmentation", "%")]
    layout_waste_pct: Annotated[
        float | None,
        About(
            "layout waste: blocks that decoding sequences hold / what the model's layers keep of these tokens, less "
            "one (padding of unlike layers, tokens that left a window), mean over steps",
            "%",
        ),
    ]
    contiguous_utilization_pct: Annotated[
        float | None,
        About("share of KV memory that would hold tokens if every running sequence reserved max_model_len", "%"),
    ]
    num_preemptions: Annotated[int | None, About("times a running sequence lost its blocks")]
    recomputed_tokens: Annotated[int | None, About("tokens recomputed after a preemption", "tokens")]
    max_running: Annotated[int | None, About("maximum number of sequences in one step", "sequences")]
    max_waiting: Annotated[int | None, About("maximum number of waiting sequences", "sequences")]
    num_cached_tokens: Annotated[
        int | None, About("prompt tokens taken from the prefix cache instead of being computed", "tokens")
    ]
    prefix_hit_rate: Annotated[
        float | None, About("prompt tokens found in the prefix cache / prompt tokens looked up", "share")
    ]


class MemoryColumns(TypedDict, total=False):
    """Group ``memory``."""

    weights_bytes: Annotated[int | None, About("size of the weights, with the slots of adapters", "bytes")]
    weights_bytes_predicted: Annotated[
        int | None, About("weights_bytes predicted from config and settings alone", "bytes")
    ]
    adapter_bytes: Annotated[int | None, About("slots of LoRA adapters, a part of weights_bytes", "bytes")]
    adapter_bytes_predicted: Annotated[
        int | None, About("adapter_bytes predicted from config and settings alone", "bytes")
    ]
    weights_origin: Annotated[
        str | None,
        About(
            "source of weights_bytes: loaded, counted (parameters x dtype, nothing was loaded) or predicted (the "
            "planner's size of a quantized checkpoint)"
        ),
    ]
    activation_bytes: Annotated[int | None, About("memory reserved for one step of the largest batch", "bytes")]
    activation_peak_bytes: Annotated[
        int | None, About("memory the profile step at the largest batch actually used", "bytes")
    ]
    overhead_bytes: Annotated[int | None, About("memory reserved for everything else", "bytes")]
    graph_bytes: Annotated[int | None, About("memory reserved for captured CUDA graphs of steps", "bytes")]
    budget_bytes: Annotated[int | None, About("device_memory_bytes x gpu_memory_utilization", "bytes")]
    peak_loading_bytes: Annotated[
        int | None,
        About(
            "peak physical memory while weights, workspace and pool were made, above what the process held before; of "
            "the trial that loaded the weights, on a CPU",
            "bytes",
        ),
    ]
    peak_allocated_bytes: Annotated[
        int | None,
        About("peak memory in use: pages touched since the process started (CPU), tensor bytes (CUDA)", "bytes"),
    ]
    peak_reserved_bytes: Annotated[
        int | None,
        About(
            "peak memory held: private mappings since the process started (CPU), reserved by the allocator (CUDA)",
            "bytes",
        ),
    ]
