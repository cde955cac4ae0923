"""The memory of kvplan's own engine, predicted from the config and the settings alone.

The engine preallocates its workspace, so its activation peak is a sum over buffers (``workspace_buffers``). The engine
computes the same figures from its own code; tests/agreement demands that both agree to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvplan.catalog.spec import DenseFeedForward, ModelSpec, MoeFeedForward, SoftmaxAttention
from kvplan.errors import KvplanError
from kvplan.estimate.dtypes import cache_dtype, element_bytes
from kvplan.estimate.kv_cache import CacheSettings, components_of
from kvplan.estimate.kvplan.graphs import GraphMemory, graph_memory
from kvplan.units import MIB

Outcome = Literal["ok", "rejected_ctx", "oom_weights", "oom_kv_init"]

CPU_OVERHEAD_BYTES = 128 * MIB
CUDA_OVERHEAD_BYTES = 640 * MIB
SAMPLER_ROWS = 16
SAMPLER_BYTES_PER_LOGIT = 24
"""Per logit of a row being sampled: float32 copy, sorted values and int64 indices, softmax, cumulative sum."""
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine's settings that decide memory, with the engine's defaults. ``dtype`` auto: see ``engine_dtype``."""

    gpu_memory_utilization: float = 0.9
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    max_model_len: int | None = None
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    device: Literal["cpu", "cuda"] = "cpu"
    has_bfloat16_units: bool = False
    compute_capability: tuple[int, int] | None = None
    """Of a GPU, where it is known."""


@dataclass(frozen=True, slots=True)
class EnginePrediction:
    """What the engine will report once it has started, or why it will refuse to. Bytes of one device."""

    budget_bytes: int
    weight_bytes: int
    activation_bytes: int
    overhead_bytes: int
    """Beside graphs."""
    graphs: GraphMemory | None
    """Decode steps captured as graphs; None on a CPU."""
    kv_pool_bytes: int
    block_bytes: int
    block_size: int
    num_blocks: int
    kv_cache_tokens: int
    max_model_len: int
    max_concurrency: float
    """Sequences of ``max_model_len`` tokens that fit at once."""
    largest_context: int
    """Tokens of the longest sequence that fits; 0 when none does."""
    outcome: Outcome

    @property
    def graph_bytes(self) -> int:
        return 0 if self.graphs is None else self.graphs.num_bytes

    @property
    def fixed_bytes(self) -> int:
        """Everything that the engine takes beside its KV pool."""
        return self.weight_bytes + self.activation_bytes + self.overhead_bytes + self.graph_bytes


def engine_dtype(spec: ModelSpec, settings: EngineSettings) -> str:
    """``dtype`` as given; "auto" : as published on a GPU; on a CPU bfloat16 where it computes in that, else float32."""
    if settings.dtype != "auto":
        return settings.dtype
    if settings.device == "cuda":
        return spec.dtype
    return "bfloat16" if settings.has_bfloat16_units and spec.dtype != "float32" else "float32"


def workspace_buffers(spec: ModelSpec, settings: EngineSettings, dtype: str, max_model_len: int) -> dict[str, int]:
    """Bytes of each preallocated buffer, by name, before rounding."""
    size = element_bytes(dtype)
    tokens = settings.max_num_batched_tokens
    rows = min(settings.max_num_seqs, tokens)
    blocks = -(-max_model_len // settings.block_size)
    hidden, vocab = spec.hidden_size, spec.vocab_size
    buffers = {
        "hidden": tokens * hidden * size,
        "normed": tokens * hidden * size,
        "delta": tokens * hidden * size,
        "scratch": tokens * _scratch_elements(spec) * size,
        "last_hidden": rows * hidden * size,
        "logits": rows * vocab * size,
        "sampler": min(rows, SAMPLER_ROWS) * vocab * SAMPLER_BYTES_PER_LOGIT,
        "token_ids": tokens * 8,
        "positions": tokens * 8,
        "slots": tokens * 8,
        "block_tables": rows * blocks * 4,
        "seq_lens": rows * 4,
        "query_starts": (rows + 1) * 4,
    }
    if spec.rope is not None:
        buffers["rope"] = max_model_len * spec.rope.rotary_size * 4
    return buffers


def _scratch_elements(spec: ModelSpec) -> int:
    """Per token, the wider of qkv with the attention's output, and the inner activations of the feed-forward."""
    widest = 0
    for layer in spec.layers:
        mixer, part = layer.mixer, layer.feed_forward
        if isinstance(mixer, SoftmaxAttention):
            query = mixer.num_heads * (mixer.head_size_k + mixer.head_size_v)
            widest = max(widest, query + mixer.num_kv_heads * (mixer.head_size_k + mixer.head_size_v))
        if isinstance(part, DenseFeedForward):
            widest = max(widest, part.intermediate_size * (2 if part.gated else 1))
        elif isinstance(part, MoeFeedForward):
            inner = part.experts_per_token * part.expert_intermediate_size + part.shared_intermediate_size
            widest = max(widest, inner * (2 if part.gated else 1))
    return widest


def _aligned(number: int) -> int:
    return -(-number // _ALIGNMENT) * _ALIGNMENT


def block_bytes_of(spec: ModelSpec, settings: EngineSettings, dtype: str) -> int:
    """All layers' K and V of one block."""
    kv_dtype = cache_dtype(dtype, settings.kv_cache_dtype)
    cached = components_of(spec.layers, CacheSettings(model_dtype=dtype, kv_dtype=kv_dtype))
    per_token = sum(component.bytes_per_token + component.window_bytes_per_token for component in cached)
    return per_token * settings.block_size


def predict(spec: ModelSpec, settings: EngineSettings, device_memory_bytes: int) -> EnginePrediction:
    """What the engine allocates on a device of ``device_memory_bytes`` (before utilization), or how it refuses.

    KvplanError when neither the settings nor the config say how long a sequence may be.
    """
    max_model_len = settings.max_model_len or spec.max_position_embeddings
    if max_model_len is None:
        raise KvplanError(f"The config of {spec.id} states no longest sequence.", hint="give one: --max-model-len 4096")
    positions = spec.max_position_embeddings or max_model_len
    dtype = engine_dtype(spec, settings)
    weight_bytes = spec.num_parameters * element_bytes(dtype)
    buffers = workspace_buffers(spec, settings, dtype, max_model_len)
    activation_bytes = sum(_aligned(number) for number in buffers.values())
    overhead_bytes = CPU_OVERHEAD_BYTES if settings.device == "cpu" else CUDA_OVERHEAD_BYTES
    graphs = _graphs(spec, settings)
    budget_bytes = int(device_memory_bytes * settings.gpu_memory_utilization)
    kv_pool_bytes = budget_bytes - weight_bytes - activation_bytes - overhead_bytes
    kv_pool_bytes -= graphs.num_bytes if graphs is not None else 0
    block_bytes = block_bytes_of(spec, settings, dtype)
    num_blocks = max(kv_pool_bytes, 0) // block_bytes if block_bytes else 0
    blocks_needed = -(-max_model_len // settings.block_size)
    return EnginePrediction(
        budget_bytes=budget_bytes,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        overhead_bytes=overhead_bytes,
        graphs=graphs,
        kv_pool_bytes=max(kv_pool_bytes, 0),
        block_bytes=block_bytes,
        block_size=settings.block_size,
        num_blocks=num_blocks,
        kv_cache_tokens=num_blocks * settings.block_size,
        max_model_len=max_model_len,
        max_concurrency=num_blocks / blocks_needed,
        largest_context=min(num_blocks * settings.block_size, positions),
        outcome=_outcome(weight_bytes, budget_bytes, num_blocks, blocks_needed, too_long=max_model_len > positions),
    )


def _graphs(spec: ModelSpec, settings: EngineSettings) -> GraphMemory | None:
    if settings.device == "cpu":
        return None
    rows = min(settings.max_num_seqs, settings.max_num_batched_tokens)
    return graph_memory(spec, rows, settings.compute_capability)


def _outcome(weight_bytes: int, budget_bytes: int, num_blocks: int, blocks_needed: int, *, too_long: bool) -> Outcome:
    if too_long:
        return "rejected_ctx"
    if weight_bytes > budget_bytes:
        return "oom_weights"
    if num_blocks <= 0:
        return "oom_kv_init"
    return "rejected_ctx" if num_blocks < blocks_needed else "ok"
