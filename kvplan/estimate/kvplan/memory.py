"""The memory of kvplan's own engine, predicted from the config and the settings alone.

The engine preallocates its workspace, so its activation peak is a sum over buffers (``workspace_buffers``). The engine
computes the same figures from its own code; tests/agreement checks that both agree to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import LatentAttention, ModelSpec, SoftmaxAttention
from kvplan.errors import UsageError
from kvplan.estimate.adapters import engine_slot_bytes
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kv_groups import STATE
from kvplan.estimate.kvplan.graphs import GraphMemory, graph_memory, launches_each_expert
from kvplan.estimate.kvplan.held_weights import held_weight_bytes, holds_few_bits
from kvplan.estimate.kvplan.layout import KvLayout, plan_layout
from kvplan.estimate.kvplan.ranks import stage_specs
from kvplan.estimate.kvplan.scratch import chosen_tokens, layer_input_elements, scratch_elements
from kvplan.estimate.kvplan.settings import EngineDevice, KvplanSettings, resolve_settings, sampled_rows
from kvplan.estimate.weights import size_weights
from kvplan.settings import FilledSettings, ServingSettings
from kvplan.units import MIB

WIDENED_BYTES = 64 * MIB
"""Weights in few bits are widened so much at a time, where a step has many rows."""
PARTS_BYTES = 32 * MIB
"""What blocks of attention leave for one another where few queries stand behind a long prefix."""
LORA_INNER_BYTES = 16 * MIB
LORA_GROUP_ROWS = 8
DRAW_BYTES = 64
"""How the token of a sequence is chosen."""
COUNT_BYTES = 2
"""What a sequence whose logits change knows of a token: whether its prompt has it, how often its answer has it."""
Outcome = Literal["ok", "rejected_ctx", "oom_weights", "oom_kv_init"]

CPU_OVERHEAD_BYTES = 128 * MIB
CUDA_OVERHEAD_BYTES = 640 * MIB
SAMPLER_ROWS = 16
SAMPLER_BYTES_PER_LOGIT = 24
"""Per logit of a sampled row, six float32: logits, log-probabilities, probabilities, sorted, cumulative sum, noise."""
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class EnginePrediction:
    """What the engine will report once it has started, or why it will refuse to. Bytes of one device: of each rank."""

    settings: KvplanSettings
    budget_bytes: int
    weight_bytes: int
    """With the slots of adapters."""
    adapter_bytes: int
    activation_bytes: int
    overhead_bytes: int
    """Beside graphs."""
    graphs: GraphMemory | None
    """Steps captured as graphs; None on a CPU, with enforce_eager, over several stages, and where
    experts run one after the other."""
    graph_bytes: int
    """As measured where it was, else what is counted of these."""
    kv_pool_bytes: int
    layout: KvLayout
    num_blocks: int
    kv_cache_tokens: int
    max_concurrency: float
    """Sequences of ``max_model_len`` tokens that fit at once while they decode."""
    largest_context: int
    """Tokens of the longest sequence that fits; 0 when none does."""
    outcome: Outcome

    @property
    def block_bytes(self) -> int:
        return self.layout.block_bytes

    @property
    def fixed_bytes(self) -> int:
        """Everything that the engine takes beside its KV pool."""
        return self.weight_bytes + self.activation_bytes + self.overhead_bytes + self.graph_bytes


def workspace_buffers(spec: ModelSpec, settings: FilledSettings, layout: KvLayout) -> dict[str, int]:
    """Bytes of each preallocated buffer, by name, before rounding."""
    size = element_bytes(settings.dtype)
    tokens = settings.max_num_batched_tokens
    rows, sampled = min(settings.max_num_seqs, tokens), sampled_rows(settings)
    hidden, vocab = spec.hidden_size, spec.vocab_size
    buffers = {
        "hidden": tokens * hidden * size,
        "normed": tokens * hidden * size,
        "delta": tokens * hidden * size,
        "scratch": tokens * scratch_elements(spec) * size,
        "last_hidden": sampled * hidden * size,
        "logits": sampled * vocab * size,
        "sampler": min(sampled, SAMPLER_ROWS) * vocab * SAMPLER_BYTES_PER_LOGIT,
        "token_ids": tokens * 8,
        "positions": tokens * 8,
        "query_starts": (rows + 1) * 4,
        **_group_buffers(layout, settings),
    }
    if (ranks := settings.tensor_parallel_size) > 1:
        buffers["shards"] = ranks * sampled * -(-vocab // ranks) * size
    if columns := layer_input_elements(spec):
        buffers["layer_inputs"] = tokens * columns * size
    if settings.max_model_len > (top_k := chosen_tokens(spec)) > 0:
        buffers["chosen"] = tokens * top_k * 4  # positions; shorter contexts have nothing to choose
    ropes = () if spec.rope is None else (spec.rope, *spec.further_ropes)
    for index, rope in enumerate(ropes):
        buffers[f"rope.{index}" if index else "rope"] = settings.max_model_len * rope.rotary_size * 4
    return buffers


def _group_buffers(layout: KvLayout, settings: FilledSettings) -> dict[str, int]:
    """Tables, slots and lengths of each group of layers, by which the step's kernels find a sequence's blocks."""
    tokens, length = settings.max_num_batched_tokens, settings.max_model_len
    rows = min(settings.max_num_seqs, tokens)
    buffers = {}
    for number, group in enumerate(layout.groups):
        if group.kept == STATE:
            buffers[f"state_table.{number}"] = rows * group.width * 4
            continue
        columns = group.most_bundles(length, min(tokens, length), layout.block_size)
        buffers[f"seq_lens.{number}"] = rows * 4
        for place in range(group.width):
            buffers[f"block_table.{number}.{place}"] = rows * columns * 4
            buffers[f"slots.{number}.{place}"] = tokens * 8
    return buffers


def _aligned(number: int) -> int:
    return -(-number // _ALIGNMENT) * _ALIGNMENT


def engine_layout(spec: ModelSpec, settings: FilledSettings) -> KvLayout:
    """How the engine lays the caches of all layers into blocks.

    A sequence attends to as many encoder tokens as a sequence has of its own where nothing else says how many.
    """
    cache = CacheSettings(
        model_dtype=settings.dtype, kv_dtype=settings.kv_cache_dtype, encoder_tokens=settings.encoder_tokens
    )
    return plan_layout(spec, cache, settings.block_size, encoder_tokens=settings.max_model_len)


@dataclass(frozen=True, slots=True)
class _RankMemory:
    """What one rank takes of its device. kv_pool_bytes: what is left, less than 0 where it does not fit."""

    weight_bytes: int
    adapter_bytes: int
    activation_bytes: int
    graphs: GraphMemory | None
    graph_bytes: int
    kv_pool_bytes: int
    layout: KvLayout

    @property
    def num_blocks(self) -> int:
        return max(self.kv_pool_bytes, 0) // self.layout.block_bytes if self.layout.block_bytes else 0


def predict(spec: ModelSpec, asked: ServingSettings, device: EngineDevice) -> EnginePrediction:
    """What the engine allocates on ``device`` (whose memory is before utilization), or how it refuses.

    Of several ranks each has such a device, and as many blocks as the one with the least room; the other figures are
    the first rank's. UsageError and KvplanError as in ``resolve_settings`` and ``stage_specs``.
    """
    resolved = resolve_settings(spec, asked, device)
    settings = resolved.serving
    positions = spec.max_position_embeddings or settings.max_model_len
    usual_overhead = CPU_OVERHEAD_BYTES if device.kind == "cpu" else CUDA_OVERHEAD_BYTES
    overhead_bytes = usual_overhead if device.overhead_bytes is None else device.overhead_bytes
    budget_bytes = int(settings.device_memory_bytes * settings.gpu_memory_utilization)
    stages = [_on_rank(each, resolved, budget_bytes - overhead_bytes) for each in stage_specs(spec, asked)]
    if settings.num_speculative_tokens:
        _refuse_states(spec, stages)
    first, num_blocks = stages[0], min(each.num_blocks for each in stages)
    layout, weight_bytes = first.layout, first.weight_bytes
    unused = (first.num_blocks - num_blocks) * layout.block_bytes
    longest, in_flight = settings.max_model_len, min(settings.max_num_batched_tokens, settings.max_model_len)
    return EnginePrediction(
        settings=resolved,
        budget_bytes=budget_bytes,
        weight_bytes=weight_bytes,
        adapter_bytes=first.adapter_bytes,
        activation_bytes=first.activation_bytes,
        overhead_bytes=overhead_bytes,
        graphs=first.graphs,
        graph_bytes=first.graph_bytes,
        kv_pool_bytes=max(first.kv_pool_bytes, 0) - unused,
        layout=layout,
        num_blocks=num_blocks,
        kv_cache_tokens=layout.pool_tokens(num_blocks, longest),
        max_concurrency=num_blocks / max(layout.blocks_for(longest), 1),
        largest_context=layout.longest_sequence(num_blocks, settings.max_num_batched_tokens, positions),
        outcome=start_outcome(
            weight_bytes,
            budget_bytes,
            num_blocks,
            blocks_at_least=layout.blocks_for(1),
            blocks_needed=layout.blocks_for(longest, in_flight),
            too_long=longest > positions,
        ),
    )


def _refuse_states(spec: ModelSpec, stages: Sequence[_RankMemory]) -> None:
    """UsageError for a model that keeps states: a rejected token cannot be taken out of one."""
    if any(group.kept == STATE for stage in stages for group in stage.layout.groups):
        raise UsageError(
            f"kvplan's engine does not decode speculatively with the states that {spec.served_id} keeps.",
            hint="leave speculation out, or use --engine vllm",
        )


def _on_rank(spec: ModelSpec, resolved: KvplanSettings, room_bytes: int) -> _RankMemory:
    """spec: of what the rank has. room_bytes: for weights, buffers, graphs and blocks."""
    settings, device = resolved.serving, resolved.device
    adapter_bytes = engine_slot_bytes(spec, settings, settings.dtype)
    weight_bytes = _weight_bytes(spec, settings, device) + adapter_bytes
    drafter = _draft_model(spec, settings)
    layout = engine_layout(spec if drafter is None else _behind(spec, drafter), settings)
    buffers = workspace_buffers(spec, settings, layout) | kernel_buffers(spec, settings, device)
    if drafter is not None:
        as_target = spec.drafter is not None and spec.drafter.method == "mtp"
        stored = settings if as_target else replace(settings, quantization="auto", group_size=None)
        weight_bytes += _weight_bytes(drafter, stored, device)
        buffers |= _draft_buffers(drafter, settings, layout, is_joined=as_target)
    activation_bytes = sum(map(_aligned, buffers.values()))
    graphs = _graphs(spec, resolved)
    graph_bytes = device.graph_bytes
    if graph_bytes is None:
        graph_bytes = 0 if graphs is None else graphs.num_bytes
    left = room_bytes - weight_bytes - activation_bytes - graph_bytes
    return _RankMemory(weight_bytes, adapter_bytes, activation_bytes, graphs, graph_bytes, left, layout)


def _draft_model(spec: ModelSpec, settings: FilledSettings) -> ModelSpec | None:
    """The model that drafts, in these settings; None where none does. Nor does it share tables of cosines and sines."""
    drafter = spec.drafter
    if drafter is None or drafter.model is None or not settings.num_speculative_tokens:
        return None
    if drafter.method == "mtp":
        return replace(drafter.model, rope=spec.rope)
    return resolve_model(drafter.name)


def _behind(spec: ModelSpec, drafter: ModelSpec) -> ModelSpec:
    """Both as the pool sees them: layers of ``drafter`` follow those of ``spec``. UsageError for layers of windows."""
    joined = replace(spec, layers=(*spec.layers, *drafter.layers))
    for layer in joined.layers:
        for mixer in layer.mixers:
            is_full = isinstance(mixer, SoftmaxAttention) and mixer.window_kind == "full"
            if not is_full and not isinstance(mixer, LatentAttention):
                raise UsageError(
                    "kvplan's engine runs drafters with layers beside models whose layers all keep every token alike.",
                    hint="use --engine vllm, or the speculative method ngram",
                )
    return joined


def _draft_buffers(
    drafter: ModelSpec, settings: FilledSettings, layout: KvLayout, *, is_joined: bool
) -> dict[str, int]:
    """Buffers of its passes, which compute no more tokens than a step has and take each sequence's likeliest token.

    is_joined: it reads embeddings and hidden states side by side, and leaves a hidden state for each sequence.
    """
    buffers = workspace_buffers(drafter, replace(settings, num_speculative_tokens=0), layout)
    if is_joined:
        width = drafter.hidden_size * element_bytes(settings.dtype)
        buffers["scratch"] = max(buffers["scratch"], settings.max_num_batched_tokens * 2 * width)
        buffers["handed_on"] = settings.max_num_seqs * width
    return {f"draft.{name}": size for name, size in buffers.items() if name != "sampler"}


def _weight_bytes(spec: ModelSpec, settings: FilledSettings, device: EngineDevice) -> int:
    """Return the bytes as the engine holds them; for one that only counts, as they are published."""
    if device.is_counted and spec.quantization is not None and settings.quantization == "auto":
        return size_weights(spec, settings.dtype).total_bytes
    on_gpu = device.kind == "cuda"
    return held_weight_bytes(spec, settings.dtype, settings.quantization, settings.group_size, on_gpu=on_gpu)


def _graphs(spec: ModelSpec, resolved: KvplanSettings) -> GraphMemory | None:
    settings = resolved.serving
    has_stages = settings.pipeline_parallel_size > 1
    if resolved.device.kind == "cpu" or resolved.device.is_counted or has_stages or settings.enforce_eager:
        return None
    if launches_each_expert(spec, settings.dtype, settings.quantization, settings.group_size):
        return None
    tokens = settings.max_num_batched_tokens
    rows = min(settings.max_num_seqs, tokens)
    return graph_memory(
        *(spec, rows, tokens, resolved.device.compute_capability),
        has_adapters=settings.lora_slots is not None,
        num_ranks=settings.tensor_parallel_size,
    )


def start_outcome(
    weight_bytes: int, budget_bytes: int, num_blocks: int, *, blocks_at_least: int, blocks_needed: int, too_long: bool
) -> Outcome:
    """How a start ends. ``blocks_at_least``: of a sequence of one token; ``blocks_needed``: of the longest one."""
    if too_long:
        return "rejected_ctx"
    if weight_bytes > budget_bytes:
        return "oom_weights"
    if num_blocks < max(blocks_at_least, 1):
        return "oom_kv_init"
    return "rejected_ctx" if num_blocks < blocks_needed else "ok"


def kernel_buffers(spec: ModelSpec, settings: FilledSettings, device: EngineDevice) -> dict[str, int]:
    """Bytes by name: parts of attention's tiles, what choosing tokens takes, room to widen weights, what adapters add.

    And logits whose rows begin at multiples of 16 bytes, unless several ranks send each other theirs.

    An engine that only counts does not know which weights a checkpoint holds in few bits.
    """
    if device.kind != "cuda":
        return {}
    is_widened = not device.is_counted and holds_few_bits(spec, settings.quantization, settings.group_size)
    columns = -(-spec.vocab_size // 8) * 8
    buffers = {
        "attention_parts": PARTS_BYTES,
        "draws": settings.max_num_seqs * DRAW_BYTES,
        "token_counts": settings.max_num_seqs * columns * COUNT_BYTES,
    }
    if settings.tensor_parallel_size * settings.pipeline_parallel_size == 1:
        buffers["logits"] = sampled_rows(settings) * columns * element_bytes(settings.dtype)
    if is_widened:
        buffers["widened"] = WIDENED_BYTES
    if (slots := settings.lora_slots) is not None:
        rows = settings.max_num_batched_tokens
        groups = rows // LORA_GROUP_ROWS + min(slots.number, rows)  # each adapter's last group may be short
        buffers |= {"lora_inner": LORA_INNER_BYTES, "lora_rows": groups * LORA_GROUP_ROWS * 4, "lora_slots": groups * 4}
    return buffers
