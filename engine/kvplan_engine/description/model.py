"""A decoder: layers of mixers and feed-forwards around one residual stream, and what stands around them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvplan_engine.description.feed_forward import FeedForward
from kvplan_engine.description.mixers import Attention, Mixer
from kvplan_engine.description.norms import PRE_NORM, Norms


@dataclass(frozen=True, slots=True)
class Shape:
    """A parameter that belongs to no part, which only counts: capacity is measured for it, nothing runs it."""

    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightFactor:
    """What the rows ``label`` of a layer's ``part`` ("qkv", "second.in") are multiplied with: weights and bias.

    Factors of activations, such as Falcon-H1's, that are linear in a weight. label: "" where the part is not stacked.
    """

    part: str
    label: str
    weight: float
    bias: float


@dataclass(frozen=True, slots=True)
class LayerEnd:
    """What follows a layer's blocks (Gemma 4): its own input for each token, then a learned factor of the stream.

    input_size: elements of that input, which the stream gates and which is projected back and normalised; 0: none.
    """

    input_size: int = 0


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """A second embedding, [rows, layers x size]: ``size`` elements for each layer, to which those are added that a
    projection makes of the first embedding (Gemma 3n, Gemma 4).
    """

    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. mixers: none (MLP alone), one, two beside each other (Falcon-H1), or self and cross attention.

    residual_scale: what a block's output is multiplied with before it is added. factors: of its weights. others:
    parameters of no part.
    """

    mixers: tuple[Mixer, ...]
    feed_forward: FeedForward | None
    norms: Norms = PRE_NORM
    residual_scale: float = 1.0
    others: tuple[Shape, ...] = ()
    end: LayerEnd | None = None
    factors: tuple[WeightFactor, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage ``index`` of ``count`` that share the stack of layers: its layers begin at ``first_layer`` of the whole."""

    index: int = 0
    count: int = 1
    first_layer: int = 0

    @property
    def is_first(self) -> bool:
        """Whether it has what stands before the layers."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether it has what follows the layers."""
        return self.index == self.count - 1


@dataclass(frozen=True, slots=True)
class Joined:
    """How multi-token prediction joins its inputs: the next token's embedding and a hidden state, each normalised, side
    by side, and projected to one width (DeepSeek V3, arXiv:2412.19437, section 2.2).

    hidden_first: which of them comes first. hands_on_normed: the hidden state of the next draft is what the last norm
    gives, as of the model's own; else what it reads. behind: layers of the model before it.
    """

    hidden_first: bool = False
    hands_on_normed: bool = True
    behind: int = 0


@dataclass(frozen=True)
class ModelDescription:
    """A causal language model, as its config.json describes it. Equal layers are one object.

    architecture: the name in config.json, which a ``Family`` is registered under. max_position_embeddings:
    tokens, None where the architecture sets no limit (states, relative positions).
    learned_positions: rows of a table of positions that is added to the embedding, None where there is none, with
    ``position_offset`` added to each position first (OPT: 2). embedding_scale: what an embedding is multiplied with.
    embedding_norm: a LayerNorm follows the embedding (BLOOM). logits_scale, logits_softcap: what becomes of the logits.
    language_model: the architecture of the text's half inside of a vision or audio model; None for a model of its own.
    head_bias: the output head has one. dtype: that the weights were published in. others: parameters of no part.
    num_ranks: what a layer has is one rank's part of it, among so many, and so are embedding and head
    (``description/division.py``); 1 for a whole model. stage: which part of the stack ``layers`` are.
    num_multi_token: layers for multi-token prediction that a checkpoint has behind its own; they are not ``layers``.
    joined: the model is such a layer, whose embedding and head are another's; None for a model of its own.
    """

    architecture: str
    layers: tuple[Layer, ...]
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int | None
    norm: Norms
    tie_word_embeddings: bool
    dtype: str
    eos_token_ids: tuple[int, ...] = ()
    learned_positions: int | None = None
    position_offset: int = 0
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    head_bias: bool = False
    language_model: str | None = None
    layer_inputs: LayerInputs | None = None
    others: tuple[Shape, ...] = ()
    num_ranks: int = 1
    stage: Stage = Stage()
    num_multi_token: int = 0
    joined: Joined | None = None

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding and of the head, on one rank."""
        return -(-self.vocab_size // self.num_ranks)

    @property
    def is_whole(self) -> bool:
        """Whether one process runs all of it."""
        return self.num_ranks == 1 and self.stage.count == 1

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @cached_property
    def distinct_layers(self) -> tuple[Layer, ...]:
        """Each kind of layer once, in order of appearance."""
        return tuple(dict.fromkeys(self.layers))

    @cached_property
    def num_first_of_each(self) -> int:
        """How many layers, from the first one on, include every kind."""
        return max(map(self.layers.index, self.distinct_layers)) + 1


# Models whose layers all keep as much of the same tokens.


def attention_of(layer: Layer) -> Attention | None:
    """The layer's attention, where that is its only mixer and has keys and values of one size of its own."""
    if len(layer.mixers) != 1 or not isinstance(layer.mixers[0], Attention):
        return None
    attention = layer.mixers[0]
    keeps_both = attention.reads_layer is None and attention.key_size == attention.value_size
    return attention if keeps_both and attention.indexer is None else None


def uniform_attention(model: ModelDescription) -> Attention | None:
    """The first layer's attention, where all layers keep as many keys and values of the same tokens; None elsewhere."""
    found = [attention_of(layer) for layer in model.distinct_layers]
    first = found[0] if found else None
    if first is None:
        return None
    wanted = (first.num_kv_heads, first.key_size, first.kept)
    same = all(each is not None and (each.num_kv_heads, each.key_size, each.kept) == wanted for each in found)
    return first if same else None
