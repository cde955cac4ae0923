"""Layers of which some keep a window or a chunk of the tokens and some keep all.

gemma     Gemma 2, 3, 3n and 4, VaultGemma, Rnj-1
readers   the others: Command R7B, EXAONE 4, gpt-oss, Granite with windows, GPT-Neo, Llama 4, Muse, OLMo 3, PLaMo 3, CWM
"""

from dataclasses import replace

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import GPT_OSS_GGUF, QWEN_NAMES, with_names
from kvplan_engine.checkpoints.families.mixtures.table import GRANITE_MOE_NAMES
from kvplan_engine.checkpoints.families.windows.gemma import (
    GEMMA2_GGUF,
    GEMMA3_GGUF,
    GEMMA4_NAMES,
    read_gemma2,
    read_gemma3,
    read_gemma3n,
    read_gemma4,
    read_rnj1,
    read_vaultgemma,
)
from kvplan_engine.checkpoints.families.windows.readers import (
    read_cohere2,
    read_cohere2_moe,
    read_cwm,
    read_exaone4,
    read_exaone_moe,
    read_gpt_neo,
    read_gpt_oss,
    read_granite_moe_swa,
    read_granite_swa,
    read_llama4,
    read_muse_glimmer,
    read_olmo3,
    read_plamo3,
)
from kvplan_engine.checkpoints.tensor_names import TensorNames

_GEMMA_NAMES = TensorNames(mlp_norm="pre_feedforward_layernorm")
_GPT_NEO_NAMES = TensorNames(
    embedding="wte",
    positions="wpe",
    layer="h.{}",
    qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    output="attn.attention.out_proj",
    up=("mlp.c_fc",),
    down="mlp.c_proj",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    final_norm="ln_f",
)
_EXAONE_MOE_NAMES = with_names(QWEN_NAMES, correction="mlp.e_score_correction_bias")
_GPT_OSS_NAMES = TensorNames(
    inside={
        "sinks": "self_attn.sinks",
        "router": "mlp.router",
        "experts.up": "mlp.experts.gate_up_proj",
        "experts.down": "mlp.experts.down_proj",
    },
    experts="turns",
)
_SINKS = TensorNames(inside={"sinks": "self_attn.sinks"})
_GRANITE_MOE_SWA_NAMES = replace(
    with_names(
        GRANITE_MOE_NAMES,
        sinks="self_attn.sinks",
        router="block_sparse_moe.router",
        experts__up="block_sparse_moe.experts.gate_up_proj",
        experts__down="block_sparse_moe.experts.down_proj",
    ),
    experts="rows",
)

WINDOWS = (
    Family(("Gemma2ForCausalLM",), read_gemma2, _GEMMA_NAMES, gguf=GEMMA2_GGUF),
    Family(("Gemma3ForCausalLM",), read_gemma3, _GEMMA_NAMES, gguf=GEMMA3_GGUF),
    Family(("VaultGemmaForCausalLM",), read_vaultgemma),
    Family(("CwmForCausalLM",), read_cwm),
    Family(("MuseGlimmerForCausalLM",), read_muse_glimmer),
    Family(("Plamo3ForCausalLM",), read_plamo3),
    Family(("Rnj1ForCausalLM",), read_rnj1),
    Family(("Gemma3nForCausalLM",), read_gemma3n),
    Family(("Gemma4ForCausalLM",), read_gemma4, GEMMA4_NAMES),
    Family(("Olmo3ForCausalLM",), read_olmo3, TensorNames()),
    Family(("Cohere2ForCausalLM",), read_cohere2, TensorNames()),
    Family(("Cohere2MoeForCausalLM",), read_cohere2_moe, QWEN_NAMES),
    Family(("Exaone4ForCausalLM",), read_exaone4, TensorNames()),
    Family(("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"), read_exaone_moe, _EXAONE_MOE_NAMES),
    Family(("GptOssForCausalLM",), read_gpt_oss, _GPT_OSS_NAMES, gguf=GPT_OSS_GGUF),
    Family(("GraniteSWAForCausalLM",), read_granite_swa, _SINKS),
    Family(("GraniteMoeSWAForCausalLM",), read_granite_moe_swa, _GRANITE_MOE_SWA_NAMES),
    Family(("GPTNeoForCausalLM",), read_gpt_neo, _GPT_NEO_NAMES, prefixes=("transformer.", "")),
    Family(("Llama4ForCausalLM",), read_llama4),
)
