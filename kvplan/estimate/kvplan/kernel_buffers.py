"""Buffers of the engine's workspace that only its CUDA kernels need."""

from __future__ import annotations

from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kvplan.held_weights import holds_few_bits
from kvplan.estimate.kvplan.settings import EngineDevice, sampled_rows
from kvplan.settings import FilledSettings
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
