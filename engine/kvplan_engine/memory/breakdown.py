"""Where the device's memory goes: the engine's own account of it. No torch.

The workspace (every buffer that a step writes to) is allocated once, before the pool, at sizes that follow from the
settings alone. So the pool's size is known from the settings too, instead of depending on the peak of a trial run.

    device total x gpu_memory_utilization = weights + workspace + overhead + graphs + KV pool

Graphs, on a GPU only, are steps captured for replay: their memory is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan_engine.description.feed_forward import FeedForward, Mixture, Mlp
from kvplan_engine.description.mixers import (
    Attention,
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    Mixer,
    Rope,
    State,
)
from kvplan_engine.description.model import ModelDescription

MEASURE_INSTEAD = "load_format='none' measures its capacity without computing anything"

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
CHOSEN = "chosen"
"""The workspace's buffer of what sparse attention has chosen, a position each; not there where contexts are shorter."""
LOGITS = "logits"
SHARDS = "shards"
"""The workspace's buffer of each rank's part of the logits, where a vocabulary is divided."""
_ALIGNMENT_BYTES = 64  # a cache line: buffers never share one

# Rows of logits that the sampler works on at a time, and its bytes per logit of such a row, six float32: a copy of the
# logits, raw log-probabilities, probabilities, sorted probabilities, cumulative sum, noise (see sampling.sampler).
SAMPLER_ROWS = 16
SAMPLER_ELEMENT_BYTES = 24


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One buffer of the workspace. dtype: a torch dtype's name.

    row_elements: of a matrix whose rows begin further apart than they are long.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    row_elements: int | None = None

    @property
    def held_shape(self) -> tuple[int, ...]:
        """With all that lies between the beginnings of two rows."""
        return self.shape if self.row_elements is None else (*self.shape[:-1], self.row_elements)

    @property
    def num_bytes(self) -> int:
        size = {"int64": 8, "int32": 4, "int16": 2, "uint8": 1}.get(self.dtype) or DTYPE_BYTES[self.dtype]
        for extent in self.held_shape:
            size *= extent
        return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def workspace_buffers(
    model: ModelDescription, dtype: str, *, max_num_batched_tokens: int, num_sampled_rows: int, max_model_len: int
) -> list[BufferSpec]:
    """Every buffer of the largest step that the settings allow, but for those of ``index_buffers``.

    ``scratch`` holds what a part of a layer needs for itself, one part after the other. A table of cosines and sines
    for each Rope of the model's layers is called "rope", "rope.1" ... (see ``rope_tables``).
    """
    tokens = max_num_batched_tokens
    buffers = [
        BufferSpec("hidden", (tokens, model.hidden_size), dtype),
        BufferSpec("normed", (tokens, model.hidden_size), dtype),
        BufferSpec("delta", (tokens, model.hidden_size), dtype),
        BufferSpec("scratch", (tokens, scratch_columns(model)), dtype),
        BufferSpec("last_hidden", (num_sampled_rows, model.hidden_size), dtype),
        *sampling_buffers(model, dtype, num_rows=num_sampled_rows),
    ]
    if model.layer_inputs is not None:
        buffers.append(BufferSpec("layer_inputs", (tokens, layer_input_columns(model)), dtype))
    top_k = sparse_top_k(model)
    if max_model_len > top_k > 0:
        buffers.append(BufferSpec(CHOSEN, (tokens, top_k), "int32"))
    for name, rope in rope_tables(model).items():
        buffers.append(BufferSpec(name, (max_model_len, rope.rotary_size), "float32"))
    return buffers


def sampling_buffers(model: ModelDescription, dtype: str, *, num_rows: int) -> list[BufferSpec]:
    """What follows the layers of a step that samples ``num_rows`` rows: all its buffers where others compute them."""
    rows = min(num_rows, SAMPLER_ROWS)
    shards = []
    if model.num_ranks > 1:
        shards = [BufferSpec(SHARDS, (model.num_ranks, num_rows, model.vocab_rows), dtype)]
    return [
        BufferSpec(LOGITS, (num_rows, model.vocab_size), dtype),
        BufferSpec("sampler", (rows * model.vocab_size * SAMPLER_ELEMENT_BYTES,), "uint8"),
        *shards,
    ]


def sparse_top_k(model: ModelDescription) -> int:
    """The most tokens that sparse attention chooses in any layer; 0 where none chooses."""
    mixers = (mixer for layer in model.distinct_layers for mixer in layer.mixers)
    return max((mixer.sparse_top_k or 0 for mixer in mixers if isinstance(mixer, LatentAttention)), default=0)


def rope_tables(model: ModelDescription) -> dict[str, Rope]:
    """The tables of cosines and sines that the layers need, by the name of their buffer; alike ones are one."""
    tables: dict[str, Rope] = {}
    for layer in model.distinct_layers:
        for rope in filter(None, (getattr(mixer, "rope", None) for mixer in layer.mixers)):
            if not any(rope.same_table(known) for known in tables.values()):
                tables[f"rope.{len(tables)}" if tables else "rope"] = rope
    return tables


def scratch_columns(model: ModelDescription) -> int:
    """Elements of scratch memory per token: the most that any part of a layer needs at once."""
    parts = [part for layer in model.distinct_layers for part in (*layer.mixers, layer.feed_forward)]
    joined = 0 if model.joined is None else 2 * model.hidden_size
    return max([joined, layer_input_columns(model), *map(_part_columns, parts)])


def layer_input_columns(model: ModelDescription) -> int:
    """Elements per token of all layers' own inputs."""
    return 0 if model.layer_inputs is None else model.num_layers * model.layer_inputs.size


def _part_columns(part: Mixer | FeedForward | None) -> int:
    match part:
        case Attention():  # queries, keys and values, and attention's output
            return part.qkv_size + part.output_size
        case Mlp():
            return 2 * part.size if part.gated else part.size
        case Mixture():
            return _mixture_columns(part)
        case LatentAttention():
            return _latent_columns(part)
        case CompressedAttention():  # queries and output, the one vector that is key and value, the index's queries
            has_index = part.indexer is not None and part.chooses
            index = part.indexer.num_heads * part.indexer.head_size if has_index and part.indexer else 0
            return (2 * part.num_heads + 1) * part.head_size + index
        case State():
            return _state_columns(part)
        case CrossAttention():  # queries and output; an encoder's keys and values are computed once, into the pool
            return part.num_heads * (part.key_size + part.value_size)
        case None:
            return 0


def _mixture_columns(part: Mixture) -> int:
    """Gate and up of each token's experts and of the shared one; without gates up, and what the router chose."""
    inner = part.top_k * part.expert.size + (0 if part.shared is None else part.shared.size)
    return 2 * inner if part.expert.gated else inner + 32 * -(-part.top_k // 8)


def _state_columns(part: State) -> int:
    """What the first products give; Mamba's convolutions are done in place."""
    match part.kind:
        case "mamba1":  # input and gate; the step's latent, B and C; the step
            return 3 * part.conv_channels + part.rank + 2 * part.recurrent_shape[-1]
        case "mamba2":  # gate, the convolution's inputs, and each head's step
            heads, rows, _ = part.recurrent_shape
            return heads * rows + part.conv_channels + heads
        case "gated_delta":  # queries, keys, values and gate, and each head's decay and strength
            heads, rows, _ = part.recurrent_shape
            return part.conv_channels + heads * rows + 2 * heads
        case "kimi_delta":  # queries, keys, values; decays, gate, and their latent; each head's strength
            heads, rows, _ = part.recurrent_shape
            return part.conv_channels + 2 * heads * rows + part.rank + heads
        case "linear_attention":  # queries, keys, values and gate
            heads, rows, columns = part.recurrent_shape
            return 2 * heads * (rows + columns)
        case "short_conv":
            return 3 * part.conv_channels
        case "ngram_conv" | "stream_conv":  # a key for every residual stream (or what comes out), what is convolved
            return 2 * part.conv_channels


def _latent_columns(part: LatentAttention) -> int:
    """Queries, later the output of each head; queries as rows of the cache; the latents, later what attention gives."""
    index = 0 if part.indexer is None else part.indexer.columns  # before the queries are as wide as rows
    latents = max(part.num_heads * part.kv_rank, part.down_columns)
    return part.head_columns + max(part.num_heads * part.row_size, index) + latents


@dataclass(frozen=True, slots=True)
class MemoryBreakdown:
    """What an engine's memory is used for, in bytes.

    activation_bytes: the workspace. activation_peak_bytes: the workspace and what the profile step took on top,
    measured. overhead_bytes: reserved for what is not a tensor. graph_bytes: reserved for steps captured as
    graphs, as measured when they were first captured; 0 without.
    """

    device_total_bytes: int
    budget_bytes: int
    weight_bytes: int
    activation_bytes: int
    activation_peak_bytes: int
    overhead_bytes: int
    kv_pool_bytes: int
    block_bytes: int
    num_blocks: int
    block_size: int
    graph_bytes: int = 0
