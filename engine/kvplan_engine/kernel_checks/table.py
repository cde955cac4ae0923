"""What stands in for each family of kernels that fails, or is slower than what it replaces."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan_engine.kernels.cuda.launching import families


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
    families.PREFILL_WGMMA: KernelFamily("prompt attention, warp groups", "prefill_mma"),
    families.LATENT_MMA: KernelFamily("latent attention, tensor cores", "the simple kernels"),
    families.WRITE_KV: KernelFamily("new keys and values, rotation", "torch"),
    families.SKINNY: KernelFamily("products of up to 16 rows", "cuBLAS"),
    families.DEPENDENT_LAUNCH: KernelFamily("launches that overlap (PDL)", "off"),
    families.QUANTISED_MMA: KernelFamily("products with codes, tensor cores", "quantised_simple"),
    families.QUANTISED_SIMPLE: KernelFamily("products with codes, simple", "torch"),
    families.QUANTISED_WIDEN: KernelFamily("weights in few bits, widened", "torch"),
    families.MIXTURE_MMA: KernelFamily("experts, tensor cores", "mixture_simple"),
    families.MIXTURE_SIMPLE: KernelFamily("experts, simple", "torch"),
    families.STATES: KernelFamily("layers with a state", "torch"),
    families.DRAWS: KernelFamily("drawing tokens", "torch"),
    families.LORA: KernelFamily("what adapters add", "torch"),
    **{name: KernelFamily(what, "attention_backend='reference'") for name, what in CPU_FAMILIES.items()},
    **{name: KernelFamily(f"operation {name}", "torch") for name in families.OPERATIONS},
}
"""By name, in the order in which they are listed."""

CHOSEN_BY_TIME = (families.PREFILL_WGMMA, families.SHARED_PREFIX, families.SKINNY, families.DEPENDENT_LAUNCH)
"""Those that are in use only where they are faster than their twins."""


def is_chosen_by_time(family: str) -> bool:
    """Whether it has to win against its twin."""
    return family.removesuffix("_fp8") in CHOSEN_BY_TIME
