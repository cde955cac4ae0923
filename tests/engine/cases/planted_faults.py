"""Kernels broken on purpose: one line of a source is changed before it is compiled for the emulation."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fake_gpu import RecordingRuntime

from kvplan_engine import EngineConfig
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.description.weight_format import WeightFormat
from kvplan_engine.kernel_checks.use import KernelUse, use_of
from kvplan_engine.kernels.cuda.launching.runtime import Kernel
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.paths import source_dir

_SIZES = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 384, "head_dim": 64}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_SIZES, **_HEADS}
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 128,
    "n_head": 2,
    "n_layer": 2,
    "vocab_size": 384,
    "n_positions": 1024,
}
MIXTRAL: dict[str, Any] = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
}
MAMBA2: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "vocab_size": 384,
    "state_size": 32,
    "head_dim": 32,
    "num_heads": 8,
    "expand": 2,
    "n_groups": 1,
    "conv_kernel": 4,
}
INT4 = WeightFormat(4, 128, 4, has_minimums=True)
FP8_BLOCKS = WeightFormat(8, 128, 4)


@dataclass(frozen=True)
class Fault:
    """``old`` of ``source`` (below csrc/cuda) becomes ``new``. families: that are wrong then in a model that has them.

    config: that model; cache: its kv_cache_dtype; formats: of its weights.
    """

    name: str
    source: str
    old: str
    new: str
    families: tuple[str, ...]
    config: dict[str, Any] | None = None
    cache: str = "auto"
    formats: tuple[WeightFormat, ...] = ()
    has_adapters: bool = False
    num_ranks: int = 1

    def __str__(self) -> str:
        return self.name

    def use(self) -> KernelUse:
        """What the fault's model could use."""
        config = LLAMA if self.config is None else self.config
        settings = EngineConfig(
            model=config, load_format="dummy", kv_cache_dtype=self.cache, enable_lora=self.has_adapters
        )
        use = use_of(read_config(config), settings, "bfloat16", self.formats)
        return replace(use, num_ranks=self.num_ranks)


_FACTOR = "update_softmax(state, scores, score_factor(params));"

FAULTS = (
    Fault(
        "decode loses the first token",
        "attention/decode/decode_mma.cu",
        "first_visible(item.length - 1, params);",
        "first_visible(item.length - 1, params) + (item.length > 20);",
        ("decode_mma",),
    ),
    Fault(
        "an fp8 value loses its sign",
        "attention/decode/decode_mma.cu",
        "Pair<Product>::from_float8(raw[i / 2],",
        "Pair<Product>::from_float8(raw[i / 2] & 0x7FFFFFFFu,",
        ("decode_mma_fp8",),
        cache="fp8",
    ),
    Fault(
        "a prompt's scores grow by a tenth",
        "attention/prefill/prefill_mma.cu",
        _FACTOR,
        "update_softmax(state, scores, score_factor(params) * (WARPS == 1 || IS_SHARED ? 1.0f : 1.1f));",
        ("prefill_mma",),
    ),
    Fault(
        "a short prompt's scores grow by a tenth",
        "attention/prefill/prefill_mma.cu",
        _FACTOR,
        "update_softmax(state, scores, score_factor(params) * (WARPS == 1 ? 1.1f : 1.0f));",
        ("prefill_short",),
    ),
    Fault(
        "a shared prefix's scores grow by a tenth",
        "attention/prefill/prefill_mma.cu",
        _FACTOR,
        "update_softmax(state, scores, score_factor(params) * (IS_SHARED ? 1.1f : 1.0f));",
        ("shared_prefix",),
    ),
    Fault(
        "warp groups' scores grow by a tenth",
        "attention/prefill/prefill_wgmma.cu",
        "const float factor = score_factor(params);",
        "const float factor = 1.1f * score_factor(params);",
        ("prefill_wgmma",),
    ),
    Fault(
        "a warp group keeps its turn",
        "attention/prefill/prefill_wgmma.cu",
        "own.give_turn();\n        wait_products<1>();",
        "wait_products<1>();",
        ("prefill_wgmma",),
    ),
    Fault(
        "warp groups never free a tile of V",
        "attention/prefill/prefill_wgmma.cu",
        "free_stage(shared.values_free + place.stage, own);",
        "",
        ("prefill_wgmma",),
    ),
    Fault(
        "over fp8 warp groups' queries repeat two elements",
        "attention/prefill/prefill_wgmma.cu",
        "pair_from_query(raw.w)",
        "pair_from_query(raw.z)",
        ("prefill_wgmma_fp8",),
        cache="fp8",
    ),
    Fault(
        "a value lies one token further",
        "attention/cache/write_kv.cu",
        "value_slot % BLOCK_SIZE * VALUE_SIZE;",
        "(value_slot + 1) % BLOCK_SIZE * VALUE_SIZE;",
        ("write_kv",),
    ),
    Fault(
        "a block's last 16 bytes are not copied",
        "attention/cache/copy_blocks.cu",
        "first < params.block_vectors; first += step",
        "first < params.block_vectors - 1; first += step",
        ("copy_blocks",),
    ),
    Fault(
        "the last output of a product of 16 rows is not written",
        "products/skinny_mma.cu",
        "place < ROWS * OUTPUTS; place += THREADS",
        "place < ROWS * OUTPUTS - 1; place += THREADS",
        ("skinny_mma",),
    ),
    Fault(
        "a mean is that of fewer elements",
        "layers/norm.cu",
        "sum_of_squares(row, 0.0f) / WIDTH;",
        "sum_of_squares(row, 0.0f) / (WIDTH - 8);",
        ("rms_norm", "add_rms_norm"),
    ),
    Fault(
        "a variance is taken around 0",
        "layers/norm.cu",
        "sum_of_squares(row, mean) / WIDTH;",
        "sum_of_squares(row, 0.0f) / WIDTH + 0.1f;",
        ("layer_norm", "add_layer_norm"),
        config=GPT2,
    ),
    Fault(
        "a vector's last element is not gated",
        "layers/activation.cu",
        "/ (1.0f + expf(-gate.values[i])) * up.values[i];",
        "/ (1.0f + expf(-gate.values[i])) * (i == COUNT - 1 ? 1.0f : up.values[i]);",
        ("silu_and_mul",),
    ),
    Fault(
        "the last logits are not looked at",
        "layers/argmax.cu",
        "start < whole; start += THREADS * COUNT",
        "start < whole - COUNT; start += THREADS * COUNT",
        ("argmax_rows",),
    ),
    Fault(
        "a step ahead takes another sequence's token",
        "layers/copy_inputs.cu",
        "chosen[-1 - token]",
        "chosen[0]",
        ("copy_inputs",),
    ),
    Fault(
        "with top-k the next token is taken",
        "sampling/sample.cu",
        "token = drawn(row, best.value, limit);",
        "token = drawn(row, best.value, limit) + (row.asked->top_k > 0);",
        ("draws",),
    ),
    Fault(
        "a product with codes leaves inputs out",
        "products/quantised_mma.cu",
        "k < params.inputs; k += SPLIT * STEP",
        "k < params.inputs - STEP; k += SPLIT * STEP",
        ("quantised_mma",),
        formats=(INT4,),
    ),
    Fault(
        "every second group has its neighbour's scale",
        "products/quantised_widen.cu",
        "scale_at(params.scales, group);",
        "scale_at(params.scales, group / 2 * 2);",
        ("quantised_widen",),
        formats=(INT4,),
    ),
    Fault(
        "a group of fp8's sums has its neighbour's scale",
        "products/float8_mma.cu",
        "groups + step] * of_weight;",
        "groups + step / 2 * 2] * of_weight;",
        ("float8_mma", "float8_short"),
        formats=(FP8_BLOCKS,),
    ),
    Fault(
        "a tile of experts takes the first stage again",
        "mixtures/mixture_mma.cu",
        "multiply_step(tile, shared + step % STAGES * STAGE_BYTES, warp, lane);",
        "multiply_step(tile, shared, warp, lane);",
        ("mixture_mma", "mixture_large"),
        config=MIXTRAL,
    ),
    Fault(
        "an adapter leaves its last rank out",
        "products/lora_expand.cu",
        "for (int k = 0; k < params.rank; ++k) {",
        "for (int k = 0; k < params.rank - 1; ++k) {",
        ("lora",),
        has_adapters=True,
    ),
    Fault(
        "a convolution's past is one input short",
        "states/state_convolution.cu",
        "past[TAPS - 2] = inputs[i];",
        "past[TAPS - 2] = inputs[0];",
        ("states",),
        config=MAMBA2,
    ),
    Fault(
        "a sum over ranks leaves the second one out",
        "collectives/all_reduce.cu",
        "for (int rank = 1; rank < RANKS; ++rank) sum",
        "for (int rank = 2; rank < RANKS; ++rank) sum",
        ("all_reduce",),
        num_ranks=2,
    ),
)


class FaultyRuntime(RecordingRuntime):
    """The emulation over sources of which some are faulty. folder: for these."""

    def __init__(self, faults: Sequence[Fault], folder: Path) -> None:
        super().__init__()
        for part in ("cuda", "cuda_host"):
            shutil.copytree(source_dir() / part, folder / part, dirs_exist_ok=True)
        self._patched = {fault.source: folder / "cuda" / fault.source for fault in faults}
        for fault in faults:
            path = self._patched[fault.source]
            text = path.read_text(encoding="utf-8")
            assert text.count(fault.old) == 1, f"{fault.source} has no longer what {fault.name!r} changes"
            path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")

    def kernel(self, variant: KernelVariant) -> Kernel:
        """As ever, from the changed source where there is one."""
        changed = self._patched.get(variant.source)
        return super().kernel(variant if changed is None else replace(variant, source=str(changed)))
