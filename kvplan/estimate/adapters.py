"""The memory of LoRA adapters: slots beside the weights, each as large as an adapter of the largest rank allowed.

A slot holds for each corrected product A [rank, inputs] and B [outputs, rank]; where products are stacked in one matrix
(query, key and value; gate and up), an A for each of them. Slots are allocated whether adapters use them or not.

    vLLM     every linear layer, the experts' among them, and the embedding and the head of some architectures
             (vllm/lora/layers; "lora" of an architecture's row says which). A tensor-parallel rank divides B of
             column-parallel and A of row-parallel products.
    kvplan   attention's and the MLP's products, but for queries stored with a gate and values that are keys
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.catalog.architectures import architectures
from kvplan.catalog.spec import (
    DenseFeedForward,
    LayerSpec,
    ModelSpec,
    MoeFeedForward,
    SoftmaxAttention,
)
from kvplan.errors import KvplanError, unhandled_kind
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.parallel import ParallelLayout
from kvplan.settings import LoraSlots, ServingSettings

_FUSED: Final = frozenset({"Phi3ForCausalLM"})
"""Architectures whose stacked matrices ``packed_modules_mapping`` takes for one product."""


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix that adapters correct, on one rank. num_stacked: products in it, each with an A of its own.

    copies: how many there are, one for each expert.
    """

    num_inputs: int
    num_outputs: int
    num_stacked: int = 1
    copies: int = 1

    @property
    def elements_per_rank(self) -> int:
        """Number of elements of A and B of one slot, for each unit of the adapters' rank."""
        return self.copies * (self.num_stacked * self.num_inputs + self.num_outputs)


def vllm_slot_bytes(
    spec: ModelSpec, layers: range, settings: ServingSettings, dtype: str, heads_as_embeddings: Collection[str] = ()
) -> int:
    """Bytes of slots on one rank of the pipeline stage ``layers``; 0 without adapters. KvplanError if not known.

    heads_as_embeddings: the release's.
    """
    slots = settings.lora_slots
    if slots is None:
        return 0
    row = architectures().get(spec.architecture)
    corrected = None if row is None else row.vllm.lora
    if corrected is None:
        raise _unknown(spec)
    layout = ParallelLayout.of(settings)
    is_twice = spec.tie_word_embeddings and spec.architecture in heads_as_embeddings
    products = [*_outside(spec, layers, is_twice=is_twice)] if corrected == "embeddings" else []
    for index in layers:
        products += _vllm_products(spec, spec.layers[index], layout)
    return _num_bytes(slots, products, dtype)


def engine_slot_bytes(spec: ModelSpec, settings: ServingSettings, dtype: str) -> int:
    """The same for kvplan's own engine."""
    slots = settings.lora_slots
    if slots is None:
        return 0
    return _num_bytes(slots, _products_of_engine(spec), dtype)


def num_engine_products(spec: ModelSpec) -> int:
    """How many products kvplan's engine corrects in a step, where adapters are served."""
    return len(_products_of_engine(spec))


def _products_of_engine(spec: ModelSpec) -> list[Product]:
    one = ParallelLayout()
    return [product for layer in spec.layers for product in _engine_products(spec, layer, one)]


def _num_bytes(slots: LoraSlots, products: Sequence[Product], dtype: str) -> int:
    elements = sum(product.elements_per_rank for product in products)
    return slots.number * slots.rank * elements * element_bytes(dtype)


def corrects_embedding(spec: ModelSpec) -> bool:
    """Whether vLLM gives the embedding slots of adapters."""
    row = architectures().get(spec.architecture)
    return row is not None and row.vllm.lora == "embeddings"


def _outside(spec: ModelSpec, layers: range, *, is_twice: bool) -> Iterator[Product]:
    """The embedding and the head, whole on every rank; a tied head has slots too, an embedding's if ``is_twice``."""
    if layers.start == 0:
        yield Product(spec.vocab_size, spec.hidden_size)
    if layers.stop == spec.num_layers:
        yield Product(spec.hidden_size, spec.vocab_size)
        if is_twice:
            yield Product(spec.vocab_size, spec.hidden_size)


def _vllm_products(spec: ModelSpec, layer: LayerSpec, layout: ParallelLayout) -> Iterator[Product]:
    mixer = layer.mixer
    plain = isinstance(mixer, SoftmaxAttention) and mixer.indexer is None and mixer.kv_shared_with is None
    if not plain or layer.cross_attention is not None or layer.parallel_state is not None:
        raise _unknown(spec)
    assert isinstance(mixer, SoftmaxAttention)
    if mixer.output_gate != "none":
        raise _unknown(spec)
    is_fused, tp = spec.architecture in _FUSED, layout.tensor_parallel_size
    yield from _attention_products(spec, mixer, tp, is_fused=is_fused)
    if isinstance(layer.feed_forward, MoeFeedForward):
        yield from _expert_products(spec, layer.feed_forward, layout)
    else:
        yield from _mlp_products(spec, layer.feed_forward, tp, is_fused=is_fused)


def _engine_products(spec: ModelSpec, layer: LayerSpec, layout: ParallelLayout) -> Iterator[Product]:
    if isinstance(layer.mixer, SoftmaxAttention):
        yield from _attention_products(spec, layer.mixer, layout.tensor_parallel_size)
    if not isinstance(layer.feed_forward, MoeFeedForward):  # experts have no adapters there
        yield from _mlp_products(spec, layer.feed_forward, layout.tensor_parallel_size)


def _attention_products(
    spec: ModelSpec, mixer: SoftmaxAttention, tp: int, *, is_fused: bool = False
) -> Iterator[Product]:
    """is_fused: the checkpoint has query, key and value as one matrix, and adapters one A for them."""
    heads, kv_heads = mixer.num_heads // tp, max(mixer.num_kv_heads // tp, 1)
    query = heads * mixer.head_size_k
    keys_and_values = kv_heads * (mixer.head_size_k + mixer.head_size_v)
    if mixer.kv_shared_with is not None:
        yield Product(spec.hidden_size, query)
    elif mixer.output_gate != "element" and not _has_keys_as_values(mixer):
        yield Product(spec.hidden_size, query + keys_and_values, num_stacked=1 if is_fused else 3)
    yield Product(heads * mixer.head_size_v, spec.hidden_size)


def _has_keys_as_values(mixer: SoftmaxAttention) -> bool:
    names = [tensor.name for tensor in mixer.tensors]
    return any(name.endswith("k_proj") for name in names) and not any(name.endswith("v_proj") for name in names)


def _mlp_products(
    spec: ModelSpec, part: DenseFeedForward | None, tp: int, *, is_fused: bool = False
) -> Iterator[Product]:
    if part is None:
        return
    if not isinstance(part, DenseFeedForward):
        raise unhandled_kind(part, "_mlp_products")
    number = 2 if part.gated else 1
    inner = -(-part.intermediate_size // tp)
    yield Product(spec.hidden_size, number * inner, num_stacked=1 if is_fused else number)
    yield Product(inner, spec.hidden_size)


def _expert_products(spec: ModelSpec, part: MoeFeedForward, layout: ParallelLayout) -> Iterator[Product]:
    """The router, which every rank has whole, the experts, and the shared one."""
    if not part.gated:
        raise _unknown(spec)
    experts = -(-part.num_experts // layout.expert_groups)
    inner = -(-part.expert_intermediate_size // layout.expert_slices)
    yield Product(spec.hidden_size, part.num_experts)
    yield Product(spec.hidden_size, 2 * inner, num_stacked=2, copies=experts)
    yield Product(inner, spec.hidden_size, copies=experts)
    if part.shared_intermediate_size:
        raise _unknown(spec)


def _unknown(spec: ModelSpec) -> KvplanError:
    return KvplanError(
        f"The slots of LoRA adapters of {spec.architecture} under vLLM are not known.",
        hint="leave --enable-lora out; adapters are sized for plain attention, MLPs and experts without a shared one",
    )
