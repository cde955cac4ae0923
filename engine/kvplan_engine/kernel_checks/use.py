"""Which kernels a model could use: its shapes of heads, operations, products, experts and states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kvplan_engine.config import EngineConfig
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.mixers import Attention, LatentAttention, State
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import NormKind
from kvplan_engine.description.weight_format import WeightFormat
from kvplan_engine.kernel_checks.attention_cases import Heads, Storage, attention_cases
from kvplan_engine.kernel_checks.case import Case
from kvplan_engine.kernel_checks.operation_cases import (
    Operations,
    all_reduce_cases,
    lora_cases,
    operation_cases,
)
from kvplan_engine.kernel_checks.product_cases import (
    MatrixCase,
    early_cases,
    mixture_cases,
    quantised_cases,
    skinny_cases,
)
from kvplan_engine.kernel_checks.state_cases import state_cases
from kvplan_engine.kernels.cuda.launching import families
from kvplan_engine.kernels.cuda.launching.runtime import DeviceProperties
from kvplan_engine.kernels.cuda.products.skinny import ACTIVATIONS

# What stands in for each family of kernels that fails, or is slower than what it replaces.


@dataclass(frozen=True, slots=True)
class KernelFamily:
    """what: in words. twin: what stands in for it, in words; None: nothing does, and an engine cannot start."""

    what: str
    twin: str | None

    @property
    def is_needed(self) -> bool:
        """Whether an engine cannot do without it."""
        return self.twin is None


_ATTENTION = {
    families.DECODE_MMA: KernelFamily("decode attention, tensor cores", "decode_simple"),
    families.PREFILL_MMA: KernelFamily("prompt attention, tensor cores", "prefill_simple"),
    families.PREFILL_SHORT: KernelFamily("attention of short prompts", "prefill_mma"),
    families.PREFILL_WGMMA: KernelFamily("prompt attention, warp groups", "prefill_mma"),
    families.SHARED_PREFIX: KernelFamily("prefixes that sequences share", "off"),
}

CPU_FAMILIES = {
    "cpu_decode": "decode attention",
    "cpu_prompts": "prompt attention",
    "cpu_write": "new keys and values, rotation",
    "cpu_products": "products with dense weights",
}

FAMILIES: dict[str, KernelFamily] = {
    **_ATTENTION,
    **{f"{name}_fp8": KernelFamily(f"{each.what}, fp8 cache", each.twin) for name, each in _ATTENTION.items()},
    families.DECODE_SIMPLE: KernelFamily("decode attention, simple", None),
    families.PREFILL_SIMPLE: KernelFamily("prompt attention, simple", None),
    families.LATENT_MMA: KernelFamily("latent attention, tensor cores", "the simple kernels"),
    families.WRITE_KV: KernelFamily("new keys and values, rotation", "torch"),
    families.SKINNY: KernelFamily("products of up to 16 rows", "cuBLAS"),
    families.DEPENDENT_LAUNCH: KernelFamily("launches that overlap (PDL)", "off"),
    families.QUANTISED_MMA: KernelFamily("products with codes, tensor cores", "quantised_simple"),
    families.QUANTISED_SIMPLE: KernelFamily("products with codes, simple", "torch"),
    families.QUANTISED_WIDEN: KernelFamily("weights in few bits, widened", "torch"),
    families.FLOAT8_SHORT: KernelFamily("fp8 blocks, up to some hundred rows", "quantised_widen and cuBLAS"),
    families.FLOAT8_MMA: KernelFamily("fp8 blocks, many rows", "quantised_widen and cuBLAS"),
    families.MIXTURE_MMA: KernelFamily("experts, tensor cores", "mixture_simple"),
    families.MIXTURE_LARGE: KernelFamily("experts, tiles of 128 rows", "mixture_mma"),
    families.MIXTURE_SIMPLE: KernelFamily("experts, simple", "torch"),
    families.STATES: KernelFamily("layers with a state", "torch"),
    families.DRAWS: KernelFamily("drawing tokens", "torch"),
    families.LORA: KernelFamily("what adapters add", "torch"),
    families.ALL_REDUCE: KernelFamily("small sums over ranks", "NCCL"),
    **{name: KernelFamily(what, "attention_backend='reference'") for name, what in CPU_FAMILIES.items()},
    **{name: KernelFamily(f"operation {name}", "torch") for name in families.OPERATIONS},
}
"""Kernel families by name, in the order in which they are listed."""

_OF_WEIGHTS = (families.FLOAT8_SHORT, families.FLOAT8_MMA, families.MIXTURE_LARGE)
_ALWAYS_POSSIBLE = (*_OF_WEIGHTS, families.DEPENDENT_LAUNCH)  # the last may be switched on later
CHOSEN_BY_TIME = (families.PREFILL_WGMMA, families.SHARED_PREFIX, families.SKINNY, *_ALWAYS_POSSIBLE)
"""Kernel families in use only where they are faster than their twins."""


def is_chosen_by_time(family: str) -> bool:
    """Whether it has to win against its twin."""
    return family.removesuffix("_fp8") in CHOSEN_BY_TIME


_FUSED = {("silu", True): "silu_and_mul", ("gelu_tanh", False): "gelu_new_inplace", ("gelu", False): "gelu_inplace"}
"""Operations of ``Ops`` by activation and whether it is gated."""


@dataclass(frozen=True, slots=True)
class KernelUse:
    """asked: of the families that are chosen by time, those that the settings name; they need not win. possible: those
    that may run at all. lora_rank: of adapters, None where there are none. num_ranks: that share every layer.
    """

    storage: Storage
    heads: tuple[Heads, ...]
    operations: Operations
    hidden: int
    matrices: tuple[MatrixCase, ...]
    formats: tuple[WeightFormat, ...]
    mixtures: tuple[Mixture, ...]
    states: tuple[State, ...]
    asked: frozenset[str] = frozenset()
    possible: frozenset[str] = frozenset()
    lora_rank: int | None = None
    num_ranks: int = 1

    def cases(self, properties: DeviceProperties) -> list[Case]:
        """Everything to check on a device, the plainest first; a kernel that may hang takes nothing with it."""
        found = [*self._plain(properties), *self._fast(properties)]
        first = [case for case in found if not is_chosen_by_time(case.families[0])]
        last = [case for case in found if is_chosen_by_time(case.families[0]) and self._may_run(case)]
        return [*first, *last]

    def is_asked_for(self, family: str) -> bool:
        """Whether the settings name it."""
        return family.removesuffix("_fp8") in self.asked

    def _may_run(self, case: Case) -> bool:
        return case.families[0].removesuffix("_fp8") in self.possible

    def _plain(self, properties: DeviceProperties) -> Iterator[Case]:
        scalar = self.storage.scalar
        yield from operation_cases(self.operations)
        yield from quantised_cases(scalar, self.formats, properties)
        yield from mixture_cases(scalar, self.mixtures, properties)
        yield from state_cases(scalar, self.states)
        yield from lora_cases(scalar, self.hidden, self.lora_rank)
        yield from all_reduce_cases(scalar, self.num_ranks)

    def _fast(self, properties: DeviceProperties) -> Iterator[Case]:
        for heads in self.heads:
            yield from attention_cases(heads, self.storage, properties)
        yield from early_cases(self.storage.scalar, self.hidden, properties)
        yield from skinny_cases(self.storage.scalar, self.matrices, properties)


def use_of(
    model: ModelDescription, config: EngineConfig, dtype: str, formats: tuple[WeightFormat, ...] = ()
) -> KernelUse:
    """What ``model`` may use in ``dtype`` with the settings of ``config``; formats: of weights held in few bits."""
    scalar = getattr(torch, dtype)
    storage = Storage(scalar, getattr(torch, config.kv_dtype(dtype)), config.block_size)
    layers = model.distinct_layers
    feed_forwards = [layer.feed_forward for layer in layers if layer.feed_forward is not None]
    mlps = tuple(dict.fromkeys(each for each in feed_forwards if isinstance(each, Mlp)))
    asked, possible = _choices(config)
    return KernelUse(
        storage,
        tuple(dict.fromkeys(heads for layer in layers for heads in _heads_of(layer))),
        _operations(model, mlps, scalar),
        model.hidden_size,
        _matrices(model, mlps),
        formats,
        tuple(dict.fromkeys(each for each in feed_forwards if isinstance(each, Mixture))),
        tuple(dict.fromkeys(mixer for layer in layers for mixer in layer.mixers if isinstance(mixer, State))),
        asked,
        possible,
        config.max_lora_rank if config.enable_lora else None,
        1 if config.disable_custom_all_reduce else config.tensor_parallel_size,
    )


def _choices(config: EngineConfig) -> tuple[frozenset[str], frozenset[str]]:
    """Families of CHOSEN_BY_TIME that the settings ask for, and those that they allow."""
    named = {"cuda_wgmma": families.PREFILL_WGMMA, "cuda_cascade": families.SHARED_PREFIX}
    asked = {named[config.attention_backend]} if config.attention_backend in named else set()
    possible = {*asked, *_ALWAYS_POSSIBLE, *(named.values() if config.attention_backend == "auto" else ())}
    if config.linear_backend != "torch":
        possible.add(families.SKINNY)
    if config.linear_backend == "cuda_skinny":
        asked.add(families.SKINNY)
    if config.enable_pdl:
        asked.add(families.DEPENDENT_LAUNCH)
    return frozenset(asked), frozenset(possible)


def _heads_of(layer: Layer) -> Iterator[Heads]:
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            yield Heads(
                *(mixer.num_heads, mixer.num_kv_heads, mixer.key_size, mixer.value_size, mixer.scale),
                window=mixer.kept.tokens if mixer.kept.kind == "window" else None,
                softcap=mixer.softcap,
                has_sinks=mixer.sinks,
                has_slopes=mixer.alibi,
                rotary_size=0 if mixer.rope is None or mixer.rope.offset else mixer.rope.rotary_size,
            )
        elif isinstance(mixer, LatentAttention) and mixer.sparse_top_k is None:
            sizes = (mixer.num_heads, 1, mixer.row_size, mixer.kv_rank, mixer.scale)
            yield Heads(*sizes, latent_values=mixer.kv_rank)


def _operations(model: ModelDescription, mlps: tuple[Mlp, ...], scalar: torch.dtype) -> Operations:
    names = (_FUSED.get((mlp.activation, mlp.gated)) for mlp in mlps)
    turning = [
        (mixer.key_size, mixer.rope.rotary_size)
        for layer in model.distinct_layers
        for mixer in layer.mixers
        if isinstance(mixer, Attention) and mixer.rope is not None and not mixer.rope.offset
    ]
    return Operations(
        scalar,
        tuple(dict.fromkeys(_norms(model))),
        tuple(dict.fromkeys(name for name in names if name is not None)),
        max((mlp.size for mlp in mlps), default=model.hidden_size),
        model.vocab_size,
        turning[0] if turning else None,
    )


def _norms(model: ModelDescription) -> Iterator[tuple[str, int]]:
    """Operations and what they are compiled for: norms of the hidden state, and of heads."""
    kinds = {layer.norms.kind for layer in model.distinct_layers} | {model.norm.kind}
    for kind in sorted(kinds):
        name = _norm_operation(kind)
        yield name, model.hidden_size
        yield f"add_{name}", model.hidden_size
    for layer in model.distinct_layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention) and mixer.head_norm == "head":
                yield _norm_operation(mixer.head_norm_kind or layer.norms.kind), mixer.key_size


def _norm_operation(kind: NormKind) -> str:
    return "rms_norm" if kind.startswith("rms") else "layer_norm"


def _matrices(model: ModelDescription, mlps: tuple[Mlp, ...]) -> tuple[MatrixCase, ...]:
    """Dense weights of a layer of each kind."""
    hidden, found = model.hidden_size, []
    for layer in model.distinct_layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention):
                found += [MatrixCase(mixer.qkv_size, hidden), MatrixCase(hidden, mixer.output_size)]
    for mlp in mlps:
        plain = {"gelu_tanh": "gelu_new"}.get(mlp.activation, mlp.activation)
        name = f"{mlp.activation}_and_mul" if mlp.gated else plain
        found += [MatrixCase(mlp.size, hidden, name if name in ACTIVATIONS else None), MatrixCase(hidden, mlp.size)]
    return tuple(dict.fromkeys(found))
