"""What one rank does in a step: bytes it reads, operations it executes. Independent of the GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.spec import LatentAttention, ModelSpec, MoeFeedForward, QuantizationSpec, StateMixer
from kvplan.catalog.tensors import count_elements
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kv_cache import size_sequence
from kvplan.estimate.mixers import AttentionSpan, merged_spans
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.step_time import step_shape, whole_activation_bytes


@dataclass(frozen=True, slots=True)
class ModelWork:
    """A model over the ranks of ``layout``.

    Bytes are those of one rank of one pipeline stage: ``dense_bytes`` are read in every step, ``expert_bytes`` as far
    as tokens are routed to them. Parameters are those of the whole model: ``active_parameters`` are multiplied with
    each token, ``active_expert_parameters`` of them in routed experts; ``attention`` is what a token attends to.
    ``compute_dtype``: what matrices are multiplied in; ``speed_format``: the same as measured speeds are sorted by.
    ``head_bytes``: of the dense bytes, those of the output head on one rank. ``step_activation_bytes``: written and
    read per token, all layers together; ``whole_activation_bytes`` of them on every rank of a group.
    ``multiplies_weights_as_stored``: not widened to the activations' format first. ``widens_weights``: activations stay
    in 16 bits beside weights in fewer. ``num_layers``: a mixer and a feed-forward part each, so that one of them alone
    counts half (Nemotron-H's blocks). ``num_sparse_layers``: of the latent ones, those whose tokens attend to
    ``chosen_tokens`` at most; ``num_heads``: of one of these, over all ranks; ``num_choosing_layers``: of them, those
    that choose these tokens, ``scored_keys`` for each token before. ``model_type``: that of the checkpoint's config, by
    which engines choose kernels. ``four_bits``: "mxfp4" or "int4" where weights are so beside activations in 16 bits.
    ``recurrent``: the kind of its recurrent state, where it has one, of ``num_recurrent_layers`` layers.
    ``has_static_scales``: of activations, in the checkpoint.
    """

    layout: ParallelLayout
    num_layers: float
    num_expert_layers: int
    hidden_size: int
    activation_bytes: int
    dense_bytes: float
    expert_bytes: float
    num_experts: int
    experts_per_token: int
    active_parameters: int
    active_expert_parameters: int
    attention: tuple[AttentionSpan, ...]
    compute_dtype: str
    speed_format: str
    head_parameters: int
    head_bytes: float
    step_activation_bytes: float
    whole_activation_bytes: float = 0.0
    num_latent_layers: int = 0
    expert_intermediate_size: int = 0
    multiplies_weights_as_stored: bool = True
    widens_weights: bool = False
    num_sparse_layers: int = 0
    num_choosing_layers: int = 0
    scored_keys: float = 0.0
    chosen_tokens: int = 0
    num_heads: int = 0
    model_type: str = ""
    four_bits: str = ""
    recurrent: str = ""
    num_recurrent_layers: int = 0
    has_static_scales: bool = False

    @property
    def kernel_format(self) -> str:
        """``4 bits``, ``16 bits, mamba2``: of its weights, and its recurrent state, which other kernels work on."""
        bits = 16 if self.multiplies_weights_as_stored and self.compute_dtype not in ("fp8", "int8", "fp4") else 8
        bits = 4 if self.four_bits or self.compute_dtype == "fp4" else bits
        return f"{bits} bits, {self.recurrent}" if self.recurrent else f"{bits} bits"

    @property
    def attention_dtype(self) -> str:
        """What attention multiplies in: 16 bits where products have fewer."""
        return "bfloat16" if self.compute_dtype in ("fp8", "int8", "fp4") else self.compute_dtype

    @property
    def steps_together(self) -> bool:
        """Whether data-parallel groups share experts, and wait for each other in every step."""
        return self.num_expert_layers > 0

    def touched_experts(self, tokens: float) -> float:
        """Share of the experts that at least one of ``tokens`` tokens is routed to, when they choose at random."""
        if not self.num_experts:
            return 0.0
        return 1.0 - (1.0 - self.experts_per_token / self.num_experts) ** tokens

    def tiled_expert_tokens(self, tokens: float, tile_rows: float) -> float:
        """Return as many tokens as the experts multiply for ``tokens``, where each works on whole tiles of rows.

        A tile at least; of more rows, which differ from expert to expert, the last tile is half full on average.
        """
        touched = self.num_experts * self.touched_experts(tokens)
        if tile_rows <= 1 or not touched:
            return tokens
        rows = tokens * self.experts_per_token / touched
        return tokens * max(tile_rows, rows + tile_rows / 2) / rows

    def rank_activation_bytes(self) -> float:
        """Written and read per token on one rank, all layers together."""
        divided = self.step_activation_bytes - self.whole_activation_bytes
        return self.whole_activation_bytes + divided / self.layout.tensor_parallel_size

    def routed_bytes(self) -> float:
        """Hidden vectors of a token on one rank, all mixtures together: one for each expert that it chose.

        Ranks that divide every expert have all of them, ranks with experts of their own their share.
        """
        shared_by = self.layout.expert_ranks if self.layout.enable_expert_parallel else 1
        vectors = self.experts_per_token * self.num_expert_layers / shared_by
        return vectors * self.hidden_size * self.activation_bytes

    def rows(self, num_sequences: float) -> float:
        """Sequences that one rank's attention works on at once: those of its group and of one pipeline micro-batch."""
        return max(num_sequences / (self.layout.data_parallel_size * self.layout.pipeline_parallel_size), 1.0)

    def expert_rows(self, num_sequences: float) -> float:
        """Sequences whose tokens meet in the experts at once: those of all groups."""
        return max(num_sequences / self.layout.pipeline_parallel_size, 1.0)

    def stage_bytes(self, num_sequences: float, kv_bytes: float) -> float:
        """Read by one rank for one micro-batch. ``kv_bytes``: of one sequence, on a rank with all layers."""
        weights = self.weights_read(self.expert_rows(num_sequences))
        return weights + self.rows(num_sequences) * kv_bytes / self.layout.pipeline_parallel_size

    def weights_read(self, expert_rows: float) -> float:
        """Bytes of one rank for a micro-batch of which so many tokens meet in the experts."""
        return self.dense_bytes + self.expert_bytes * self.touched_experts(expert_rows)

    def stage_operations(self, num_sequences: float) -> float:
        """Multiplied and added by one rank for one micro-batch."""
        return self.operations(self.rows(num_sequences), self.expert_rows(num_sequences))

    def operations(self, rows: float, expert_rows: float) -> float:
        """The same for ``rows`` tokens of the rank's group, where ``expert_rows`` of all groups meet in the experts."""
        dense = self.active_parameters - self.active_expert_parameters
        tp, ranks = self.layout.tensor_parallel_size, self.layout.expert_ranks
        multiplied = rows * dense / tp + expert_rows * self.active_expert_parameters / ranks
        return 2 * multiplied / self.layout.pipeline_parallel_size

    def expert_operations(self, expert_rows: float) -> float:
        """Of ``operations``, those in routed experts."""
        stages, ranks = self.layout.pipeline_parallel_size, self.layout.expert_ranks
        return 2 * expert_rows * self.active_expert_parameters / (ranks * stages)

    def prompt_operations(self, tokens: int) -> float:
        """One prompt of ``tokens`` over the ranks of its group, while other groups read nothing."""
        products = self.layout.pipeline_parallel_size * self.operations(tokens, tokens)
        return products + self.attention_operations(tokens, tokens / 2)  # causal: half of the prompt on average

    def attention_operations(self, tokens: float, seen: float) -> float:
        """Those of one rank over all stages, where each of ``tokens`` attends to ``seen`` on average."""
        attended = tokens * sum([span.multiply_adds(seen) for span in self.attention])
        return 2 * attended / self.layout.tensor_parallel_size  # 2 operations per multiply-add

    def prompt_bytes(self, tokens: int) -> float:
        """Weights read for one prompt, by the ranks of all stages one after another."""
        return self.weights_read(tokens) * self.layout.pipeline_parallel_size


def model_work(spec: ModelSpec, weight_bytes: int, dtype: str, layout: ParallelLayout) -> ModelWork:
    """The work of a rank that holds ``weight_bytes``; embeddings are looked up, not read whole.

    Layers' own tables are in no rank's ``weight_bytes``.
    """
    experts = _expert_elements(spec)
    recurrent = _recurrent_kinds(spec)
    looked_up = count_elements(tuple(tensor for tensor in spec.tensors if tensor.role in ("embedding", "position")))
    if spec.tie_word_embeddings:  # the head reads that table, and no other (Gemma's have one for all layers' inputs)
        looked_up = max(looked_up - spec.vocab_size * spec.hidden_size, 0)
    sparse = [
        each.mixer for each in spec.layers if isinstance(each.mixer, LatentAttention) and each.mixer.chosen_tokens
    ]
    indexers = [mixer.indexer for mixer in sparse if mixer.indexer is not None]
    tp = layout.tensor_parallel_size
    rank_experts, rank_idle = (
        count / layout.expert_ranks for count in (experts.num_elements, experts.num_idle_elements)
    )
    held = spec.num_parameters - spec.lookup_elements - experts.num_idle_elements
    rank_elements = max((held - experts.num_elements) / tp + rank_experts, 1.0)
    read_bytes = weight_bytes * (1 - (looked_up / tp + rank_idle) / (rank_elements + rank_idle))
    expert_share = rank_experts / rank_elements
    again = weight_bytes * spec.repeated_elements / tp / (rank_elements + rank_idle)
    return ModelWork(
        layout=layout,
        num_layers=sum((each.mixer is not None) + (each.feed_forward is not None) for each in spec.layers) / 2,
        num_expert_layers=experts.num_layers,
        hidden_size=spec.hidden_size,
        activation_bytes=2,
        dense_bytes=read_bytes * (1 - expert_share) + again,
        expert_bytes=read_bytes * expert_share,
        num_experts=experts.num_experts,
        experts_per_token=experts.experts_per_token,
        active_parameters=max(spec.num_active_parameters - looked_up, 1) + spec.repeated_elements,
        active_expert_parameters=experts.num_active_elements,
        attention=merged_spans(spec.layers),
        compute_dtype=compute_dtype(spec.quantization, dtype),
        speed_format=speed_format(spec.quantization, dtype),
        head_parameters=spec.vocab_size * spec.hidden_size,
        head_bytes=_head_bytes(spec, dtype, read_bytes * (1 - expert_share), tp),
        step_activation_bytes=step_shape(
            spec, element_bytes=element_bytes(dtype), kv_bytes_per_token=0.0
        ).activation_bytes_per_token,
        whole_activation_bytes=whole_activation_bytes(spec, element_bytes(dtype)),
        num_latent_layers=sum(isinstance(layer.mixer, LatentAttention) for layer in spec.layers),
        expert_intermediate_size=experts.intermediate_size,
        multiplies_weights_as_stored=spec.quantization is None or compute_dtype(spec.quantization, dtype) != dtype,
        widens_weights=spec.quantization is not None and _widens(spec.quantization, dtype),
        num_sparse_layers=len(sparse),
        num_choosing_layers=len(indexers),
        scored_keys=sum(1 / indexer.pool for indexer in indexers),
        chosen_tokens=(sparse[0].chosen_tokens or 0) if sparse else 0,
        num_heads=sparse[0].num_heads if sparse else 0,
        model_type=spec.model_type,
        four_bits=_four_bits(spec.quantization, dtype),
        recurrent=recurrent[0] if recurrent else "",
        num_recurrent_layers=len(recurrent),
        has_static_scales=spec.quantization is not None and spec.quantization.static_input_scale,
    )


def _recurrent_kinds(spec: ModelSpec) -> list[str]:
    """Return the kinds of the layers that have a recurrent state."""
    states = (layer.mixer for layer in spec.layers if isinstance(layer.mixer, StateMixer))
    return [mixer.kind for mixer in states if mixer.recurrent_shape]


def _head_bytes(spec: ModelSpec, dtype: str, dense_bytes: float, tensor_parallel_size: int) -> float:
    """Bytes of the head on one rank: checkpoints leave it unquantized, so it can be most of what is dense."""
    head = spec.vocab_size * spec.hidden_size * element_bytes(dtype) / tensor_parallel_size
    return min(head, 0.9 * dense_bytes)


def compute_dtype(quantization: QuantizationSpec | None, dtype: str) -> str:
    """The format the matrices are multiplied in: 8-bit where weights and activations are, else the activations'."""
    if quantization is None:
        return dtype
    if quantization.method in ("nvfp4",):
        return "fp4"
    eight_bit_floats = ("fp8", "fbgemm_fp8", "modelopt")
    return "fp8" if quantization.method in eight_bit_floats and quantization.bits == 8 else dtype


def _widens(quantization: QuantizationSpec, dtype: str) -> bool:
    """8-bit integers of compressed-tensors have activations in 8 bits; other integers are widened to 16."""
    is_eight_by_eight = quantization.method == "compressed-tensors" and quantization.bits == 8
    return compute_dtype(quantization, dtype) == dtype and not is_eight_by_eight


def _four_bits(quantization: QuantizationSpec | None, dtype: str) -> str:
    if quantization is None or quantization.bits != 4 or compute_dtype(quantization, dtype) != dtype:
        return ""
    return "mxfp4" if quantization.method == "mxfp4" else "int4"


def speed_format(quantization: QuantizationSpec | None, dtype: str) -> str:
    """``compute_dtype``, but 8-bit floats with a scale per block apart: they are multiplied by other kernels."""
    found = compute_dtype(quantization, dtype)
    is_in_blocks = quantization is not None and quantization.granularity == "block"
    return "fp8-block" if found == "fp8" and is_in_blocks else found


@dataclass(frozen=True, slots=True)
class _Experts:
    num_elements: int = 0
    num_active_elements: int = 0
    num_idle_elements: int = 0
    """Of experts that no token of text meets."""
    num_layers: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    intermediate_size: int = 0


def _expert_elements(spec: ModelSpec) -> _Experts:
    """The routed experts of all layers; their number and size are the last mixture's, since nearly all are alike.

    Where layers differ in how many a token uses (Nemotron 3 Puzzle), it is the mean, weighed by their size.
    """
    found = _Experts()
    for layer in spec.layers:
        part = layer.feed_forward
        if isinstance(part, MoeFeedForward):
            stacked = [tensor for tensor in part.tensors if tensor.role == "expert"]
            idle = sum(tensor.num_elements for tensor in stacked if not tensor.num_active)
            found = _Experts(
                found.num_elements + sum(tensor.num_elements for tensor in stacked) - idle,
                found.num_active_elements + sum(tensor.num_active_elements for tensor in stacked),
                found.num_idle_elements + idle,
                found.num_layers + 1,
                part.num_experts,
                part.experts_per_token,
                part.expert_intermediate_size,
            )
    if not found.num_elements:
        return found
    used = found.num_experts * found.num_active_elements / found.num_elements
    return replace(found, experts_per_token=round(used))


def kv_read_bytes(spec: ModelSpec, context_tokens: int, cache: CacheSettings) -> int:
    """Bytes of one sequence's cache that a decode step reads on one rank, all layers together."""
    components = size_sequence(spec, max(context_tokens, 1), cache).components
    return sum(each.num_layers * each.entry.read_bytes(max(context_tokens, 1)) for each in components)
