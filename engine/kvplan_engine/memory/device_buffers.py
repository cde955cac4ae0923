"""Buffers of the workspace that only CUDA kernels need. No torch.

widened         rows of a weight in few bits, before a product of many rows; inputs in the order of such a weight
lora_inner      x A^T of some groups of rows, before B
lora_rows       numbers of the rows in each group of rows with one adapter
lora_slots      the slot of each group
draws           how the token of each sequence is chosen: a DrawRow of csrc/cuda/sampling for each
token_counts    what the sequences whose logits change know of each token: 16 bits of it
attention_parts what blocks of attention leave of parts of a tile of queries, where its tokens are cut
"""

from __future__ import annotations

from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.kernels.attention_parts import PARTS_BYTES
from kvplan_engine.kernels.lora_groups import ROWS_OF_A_GROUP, most_groups
from kvplan_engine.memory.breakdown import BufferSpec

WIDENED, LORA_INNER, LORA_ROWS, LORA_SLOTS = "widened", "lora_inner", "lora_rows", "lora_slots"
DRAWS, TOKEN_COUNTS = "draws", "token_counts"
_DRAW_BYTES = 64
_COUNTS_MULTIPLE = 8  # a row of counts is a multiple of 16 bytes
ATTENTION_PARTS = "attention_parts"
_WIDENED_BYTES = 64 * 1024**2
_LORA_INNER_BYTES = 16 * 1024**2


def draw_buffers(config: EngineConfig, model: ModelDescription) -> list[BufferSpec]:
    """What choosing tokens takes. Samples of one prompt may be more than a step's tokens: a row for each sequence."""
    columns = -(-model.vocab_size // _COUNTS_MULTIPLE) * _COUNTS_MULTIPLE
    return [
        BufferSpec(DRAWS, (config.max_num_seqs, _DRAW_BYTES), "uint8"),
        BufferSpec(TOKEN_COUNTS, (config.max_num_seqs, columns), "int16"),
    ]


def cuda_buffers(config: EngineConfig, model: ModelDescription, *, holds_few_bits: bool) -> list[BufferSpec]:
    """List the buffers for the largest step that ``config`` allows. holds_few_bits: some weight of ``model`` is."""
    buffers = [BufferSpec(ATTENTION_PARTS, (PARTS_BYTES,), "uint8"), *draw_buffers(config, model)]
    if holds_few_bits:
        buffers.append(BufferSpec(WIDENED, (_WIDENED_BYTES,), "uint8"))
    if config.enable_lora:
        groups = most_groups(config.max_num_batched_tokens, config.max_loras)
        buffers += [
            BufferSpec(LORA_INNER, (_LORA_INNER_BYTES,), "uint8"),
            BufferSpec(LORA_ROWS, (groups, ROWS_OF_A_GROUP), "int32"),
            BufferSpec(LORA_SLOTS, (groups,), "int32"),
        ]
    return buffers
