"""What a causal language model is made of, layer by layer: enough to count its parameters and its KV cache exactly.

A ``ModelSpec`` is a fact sheet, not a network. Every layer has at most one *mixer* (what moves information between
tokens, and therefore what is cached), at most one cross attention, and at most one feed-forward. Sizes are numbers
of elements; what an element costs is decided later, by the dtype of the weights and of the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from kvplan.catalog.checkpoint.stored import StoredCheckpoint
from kvplan.catalog.quantization.formats import QuantizationSpec as QuantizationSpec
from kvplan.catalog.tensors import Tensor, count_active_elements, count_elements

WindowKind = Literal["full", "sliding", "chunked"]
ConvKind = Literal["short_conv", "ngram_conv", "stream_conv"]
StateKind = Literal["mamba1", "mamba2", "gated_delta_net", "kimi_delta", "linear_attention"] | ConvKind


@dataclass(frozen=True, slots=True)
class SparseIndexer:
    """A lightning indexer (DeepSeek V3.2, MiniMax M3): one small key per token that picks the tokens to attend to.

    ``head_size`` elements per token and layer. vLLM keeps them as fp8 with one float32 scale per 128
    (132 B for 128 elements), whatever the KV dtype is.

    ``pool``: one key stands for so many tokens, and ``open_elements`` of each token of a pool that is not complete are
    kept beside the keys. ``key_format``: as above ("scaled": GLM 5.3 Flash), in 8 bits without a scale ("plain": Step
    5) or in the model's dtype ("model": Qwen 4).
    """

    num_heads: int
    head_size: int
    topk: int
    pool: int = 1
    open_elements: int = 0
    key_format: Literal["scaled", "plain", "model"] = "scaled"

    @property
    def most_chosen(self) -> int:
        """Tokens that one attends to at most: of whole pools ``topk``, and those of the open one."""
        return self.topk + self.pool - 1


@dataclass(frozen=True, slots=True)
class SoftmaxAttention:
    """Multi-head, grouped-query or multi-query attention that caches K and V per token.

    With ``window_kind`` "sliding" a token sees the last ``window_tokens`` tokens including itself; with "chunked" the
    tokens of its own chunk. ``kv_shared_with`` names the earlier layer whose cache this layer reads instead of having
    one. ``output_gate``: "element" has one gate per attention output, projected beside the query ("separate": by a
    matrix of its own); "head" one per head.
    """

    num_heads: int
    num_kv_heads: int
    head_size_k: int
    head_size_v: int
    window_kind: WindowKind = "full"
    window_tokens: int | None = None
    kv_shared_with: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    output_gate: Literal["none", "element", "separate", "head"] = "none"
    sinks: bool = False
    qk_norm: Literal["none", "head", "per_head", "full"] = "none"
    indexer: SparseIndexer | None = None
    tensors: tuple[Tensor, ...] = ()

    @property
    def cache_elements_per_token(self) -> int:
        """K and V of one token in this layer; 0 when the cache is another layer's."""
        if self.kv_shared_with is not None:
            return 0
        return self.num_kv_heads * (self.head_size_k + self.head_size_v)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: the cache holds one latent vector and one rotary key per token, for all heads.

    ``chosen_tokens``: each token attends to so many at most, which the indexer chooses; where the layer has none of its
    own, the last layer that has one did. None: to all.
    """

    num_heads: int
    kv_lora_rank: int
    qk_rope_head_size: int
    qk_nope_head_size: int
    v_head_size: int
    q_lora_rank: int | None = None
    indexer: SparseIndexer | None = None
    chosen_tokens: int | None = None
    tensors: tuple[Tensor, ...] = ()

    @property
    def cache_elements_per_token(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_size


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """DeepSeek V4's attention: one vector per token (key and value at once) in a short window, and beyond it one
    vector for every ``ratio`` tokens (None: the window alone). ``indexer``: one small key per compressed vector.

    keeps_vectors: False where the layer reads the vectors, and the keys, of one before it. chooses: False where it
    reads what another layer's indexer chose. window_block: tokens of the window in one of vLLM's blocks.
    """

    num_heads: int
    head_size: int
    window_tokens: int
    ratio: int | None = None
    indexer: SparseIndexer | None = None
    tensors: tuple[Tensor, ...] = ()
    keeps_vectors: bool = True
    chooses: bool = True
    window_block: int = 64


@dataclass(frozen=True, slots=True)
class StateMixer:
    """A layer whose memory of the past has a fixed size: state space, linear attention, short convolution.

    ``conv_channels`` channels are divided by tensor parallelism; ``conv_group_channels`` (Mamba-2's B and C, in
    ``num_groups`` groups) are divided only as far as there are groups. ``recurrent_shape`` is (heads, rows, columns),
    divided along heads; empty when there is no recurrent state. A dtype of None means the model's own dtype.
    ``step_rank``: of Mamba's time steps, 0 elsewhere. ``bounded``: decays have a lower bound (Kimi K3, GLM 5.3).
    ``ngram_conv`` is a convolution of n-grams' embeddings, which every rank has whole (Qwen 4). ``stream_conv`` are
    convolutions of keys, values and the outputs of both blocks, in as many groups as there are KV heads (Inkling).
    """

    kind: StateKind
    conv_channels: int
    conv_kernel: int
    recurrent_shape: tuple[int, ...]
    conv_group_channels: int = 0
    num_groups: int = 1
    conv_dtype: str | None = None
    recurrent_dtype: str | None = None
    step_rank: int = 0
    bounded: bool = False
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention over an encoder's outputs: K and V of every encoder token, kept for the life of the sequence."""

    num_heads: int
    num_kv_heads: int
    head_size_k: int
    head_size_v: int
    encoder_tokens: int | None
    """Encoder tokens per sequence where the architecture fixes them (Whisper: 1,500), else None: the input decides."""
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """Two matrices (up, down), or three when ``gated``."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class MoeFeedForward:
    """Experts of which a token uses ``experts_per_token``, beside shared experts that every token uses."""

    num_experts: int
    experts_per_token: int
    expert_intermediate_size: int
    shared_intermediate_size: int = 0
    gated: bool = True
    bias: bool = False
    tensors: tuple[Tensor, ...] = ()


Mixer = SoftmaxAttention | LatentAttention | CompressedAttention | StateMixer
FeedForward = DenseFeedForward | MoeFeedForward


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer. ``tensors`` are those of no part: norms, scalars, per-layer embeddings' projections.

    ``parallel_state`` is a second mixer beside an attention (Falcon H1) or a state (Qwen 4) in the same layer.
    ``repeats``: the weights of an earlier layer that this one is another pass through (Dory): held there, read again.
    """

    mixer: Mixer | None = None
    cross_attention: CrossAttention | None = None
    feed_forward: FeedForward | None = None
    tensors: tuple[Tensor, ...] = ()
    parallel_state: StateMixer | None = None
    repeats: tuple[Tensor, ...] = ()

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixer and the state beside it, as far as the layer has them."""
        if self.parallel_state is None:  # nearly always, and a plan asks every layer thousands of times
            return () if self.mixer is None else (self.mixer,)
        return (self.parallel_state,) if self.mixer is None else (self.mixer, self.parallel_state)

    @property
    def all_tensors(self) -> tuple[Tensor, ...]:
        parts = (self.mixer, self.parallel_state, self.cross_attention, self.feed_forward)
        return sum((part.tensors for part in parts if part is not None), ()) + self.tensors


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions. ``rotary_size`` of ``head_size`` elements turn; ``scaling`` as published, with its own keys."""

    theta: float
    rotary_size: int
    scaling: str | None = None
    factor: float | None = None
    original_max_position_embeddings: int | None = None


SCALED_ALREADY: Final = frozenset(("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"))
"""Scalings of rotary positions whose configs state the longest length with the scaling in it."""


@dataclass(frozen=True, slots=True)
class ExtraModule:
    """What a checkpoint carries beside the causal language model; loaded (or not) apart and named apart.

    ``num_parameters`` is None where the config does not say enough to count it. ``layer``: one layer for multi-token
    prediction, of which there are ``num_layers``.
    """

    name: str
    kind: Literal["vision", "audio", "encoder", "projector", "multi_token_prediction"]
    num_parameters: int | None
    num_layers: int = 0
    tensors: tuple[Tensor, ...] = ()
    layer: LayerSpec | None = None


SpeculativeMethod = Literal["ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp", "medusa"]
"""vLLM's names. ``ngram`` and ``suffix`` look tokens up in the text so far: no weights, no cache, no pass."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter of ``num_tokens`` tokens a step. ``name``: the model it was read from, or the method.

    ``model`` holds only what is loaded beside the target: what is shared with it (an embedding, a head) is not among
    its tensors. None where nothing is loaded.
    """

    method: SpeculativeMethod
    name: str
    num_tokens: int
    model: ModelSpec | None = None

    @property
    def num_passes(self) -> int:
        """Passes of the drafter in one step: a token each, all at once (Medusa), or none."""
        if self.model is None:
            return 0
        return 1 if self.method == "medusa" else self.num_tokens

    @property
    def shares_head(self) -> bool:
        """Whether its tokens are chosen with the target's output head."""
        return self.method in ("mtp", "eagle")


@dataclass(frozen=True)
class ModelSpec:
    """A causal language model, from its published config alone. Sizes in elements, lengths in tokens.

    ``tensors`` are those outside the layers (embedding, learned positions, final norm, untied head). ``extras`` are
    named apart and never counted in ``num_parameters``. ``assumptions`` are the defaults that the reader took because
    the config is silent, one sentence each. ``raw_config`` is the config as published, for engines that read it.
    ``id`` names whose shape this is: a profile's id, or a directory's name; ``served`` what was asked for, where that
    is another id or a path. ``checkpoint`` is set where the weights lie beside the config, or with it in one file
    (GGUF): as they are stored.
    """

    id: str
    architecture: str
    model_type: str
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int | None
    dtype: str
    tie_word_embeddings: bool
    tensors: tuple[Tensor, ...]
    rope: RopeSpec | None = None
    further_ropes: tuple[RopeSpec, ...] = ()
    """Of layers that turn otherwise than by ``rope``."""
    residual_streams: int = 1
    """As many residual streams, each of ``hidden_size``, go through the layers side by side (Qwen 4)."""
    quantization: QuantizationSpec | None = None
    extras: tuple[ExtraModule, ...] = ()
    assumptions: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    source: str | None = None
    served: str | None = None
    """What an engine is told to load: a hub id, or the absolute path of a directory or file. None: ``id``."""
    sized_as: str | None = None
    """The profile that the shape was taken from, where that is another checkpoint than the one asked for."""
    tokenizer: str | None = None
    """The hub id of the model that a GGUF file was made from, as its metadata names it."""
    checkpoint: StoredCheckpoint | None = None
    drafter: Drafter | None = None
    """What proposes tokens ahead of it, where it is served with one (kvplan.catalog.speculation)."""
    raw_config: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)

    @property
    def served_id(self) -> str:
        """What was asked for: the id that is printed, and that commands load."""
        return self.served or self.id

    @property
    def short_id(self) -> str:
        """Name for a column of a table: a path by the name of its directory or file's model, an id as it is served."""
        return self.id if self.served_id.startswith("/") else self.served_id

    @property
    def is_gguf(self) -> bool:
        """Whether a GGUF file is served."""
        return self.served_id.casefold().endswith(".gguf")

    @property
    def title(self) -> str:
        """``meta-llama/Llama-3.1-8B-Instruct (sized as meta-llama/Llama-3.1-8B)``."""
        return self.served_id if self.sized_as is None else f"{self.served_id} (sized as {self.sized_as})"

    @property
    def longest_context(self) -> int | None:
        """Tokens that vLLM takes in one sequence, None where the config says no length.

        A scaling of the rotary positions multiplies those of the config by its factor, but for the kinds whose configs
        state the scaled length already, and Gemma 3 (``_get_and_verify_max_len`` of vllm/config/model.py).
        """
        positions = self.max_position_embeddings
        if positions is None or "gemma3" in self.model_type:
            return positions
        factors = [
            rope.factor
            for rope in (self.rope, *self.further_ropes)
            if rope is not None and rope.factor and rope.scaling not in SCALED_ALREADY
        ]
        return int(positions * factors[-1]) if factors else positions

    @cached_property
    def is_latent(self) -> bool:
        """Whether any layer has latent attention."""
        return any(isinstance(layer.mixer, LatentAttention) for layer in self.layers)

    @cached_property
    def is_compressed(self) -> bool:
        """Whether any layer has compressed attention."""
        return any(isinstance(layer.mixer, CompressedAttention) for layer in self.layers)

    @cached_property
    def has_indexer(self) -> bool:
        """Whether latent attention is sparse: an indexer with a cache of its own chooses the tokens."""
        return any(isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer for layer in self.layers)

    @cached_property
    def index_pool(self) -> int:
        """Tokens that one index key of latents stands for; 1 where each has its own."""
        indexers = (layer.mixer.indexer for layer in self.layers if isinstance(layer.mixer, LatentAttention))
        return max((indexer.pool for indexer in indexers if indexer is not None), default=1)

    @cached_property
    def has_grouped_keys(self) -> bool:
        """Whether grouped attention is sparse by an index that has one key in the model's dtype for several tokens."""
        mixers = (layer.mixer for layer in self.layers if isinstance(layer.mixer, SoftmaxAttention))
        return any(mixer.indexer is not None and mixer.indexer.key_format == "model" for mixer in mixers)

    @cached_property
    def states(self) -> tuple[StateMixer, ...]:
        """The mixers that keep a state per sequence, of all layers in order."""
        return tuple(mixer for layer in self.layers for mixer in layer.mixers if isinstance(mixer, StateMixer))

    @cached_property
    def is_mixture(self) -> bool:
        """Whether any layer has experts."""
        return any(isinstance(layer.feed_forward, MoeFeedForward) for layer in self.layers)

    @cached_property
    def attends_to_encoder(self) -> bool:
        """Whether some layer has cross attention."""
        return any(layer.cross_attention is not None for layer in self.layers)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of the causal language model as served: a tied embedding once, no towers, no multi-token heads."""
        inner = sum(count * count_elements(layer.all_tensors) for layer, count in self.distinct_layers())
        return count_elements(self.tensors) + inner

    @cached_property
    def num_active_parameters(self) -> int:
        """Parameters that one token meets: of a mixture of experts only the routed and the shared ones."""
        inner = sum(count * count_active_elements(layer.all_tensors) for layer, count in self.distinct_layers())
        return count_active_elements(self.tensors) + inner

    @cached_property
    def lookup_elements(self) -> int:
        """Elements of the tables inside layers (Qwen 4), of which each token has some rows."""
        return sum(
            count * tensor.num_elements
            for layer, count in self.distinct_layers()
            for tensor in layer.all_tensors
            if tensor.role == "lookup"
        )

    @cached_property
    def repeated_elements(self) -> int:
        """Parameters that a token meets again, in further passes through the same layers."""
        return sum(count * count_active_elements(layer.repeats) for layer, count in self.distinct_layers())

    def distinct_layers(self) -> list[tuple[LayerSpec, int]]:
        """Layers that are one and the same object, once, with how often they occur; in order of appearance."""
        counts = Counter(map(id, self.layers))
        first = {id(layer): layer for layer in self.layers}
        return [(layer, counts[key]) for key, layer in first.items()]

    @cached_property
    def has_only_states(self) -> bool:
        """True when no layer keeps anything that grows with the tokens of a sequence."""
        mixers = [mixer for layer in self.layers for mixer in layer.mixers]
        return all(isinstance(mixer, StateMixer) for mixer in mixers) and not self.attends_to_encoder

    @property
    def has_state(self) -> bool:
        """True when some layer keeps recurrent state (Mamba, linear attention) instead of K and V."""
        return any(isinstance(layer.mixer, StateMixer) or layer.parallel_state is not None for layer in self.layers)
