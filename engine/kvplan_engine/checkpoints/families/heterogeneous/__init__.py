"""Layers that differ in more than what they keep: heads, gates, value sizes, or a part left out.

mixtures   AFMoE (Trinity), Laguna, MiMo V2, MiniMax M3, DBRX, openPangu Pro MoE V2, K2 Horizon
step       Step 3; Step 3.5 and 3.7 Flash; Step 5
dense      Nemotron-NAS, Domyn Edge; layers that are gone through again: HRM-Text, Dory, Nanbeige, IQuest Loop Coder
"""

from dataclasses import replace

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.heterogeneous.dense import (
    read_decilm,
    read_domyn_edge,
    read_dory,
    read_hrm_text,
    read_loop_coder,
    read_nanbeige,
)
from kvplan_engine.checkpoints.families.heterogeneous.mixtures import (
    read_afmoe,
    read_dbrx,
    read_k2_horizon,
    read_laguna,
    read_mimo_v2,
    read_minimax_m3,
    read_pangu_pro,
)
from kvplan_engine.checkpoints.families.heterogeneous.step import read_step3, read_step3p7, read_step5
from kvplan_engine.checkpoints.families.mixtures.parts import QWEN_NAMES, with_names
from kvplan_engine.checkpoints.tensor_names import TensorNames

_AFMOE_NAMES = replace(
    with_names(QWEN_NAMES, router="mlp.router.gate", correction="mlp.expert_bias", gate="self_attn.gate_proj"),
    mlp_norm="pre_mlp_layernorm",
    mlp_post_norm="post_mlp_layernorm",
)
_LAGUNA_NAMES = with_names(
    QWEN_NAMES,
    correction="mlp.experts.e_score_correction_bias",
    gate="self_attn.g_proj",
    shared__up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared__down="mlp.shared_expert.down_proj",
)
_MIMO_NAMES = with_names(QWEN_NAMES, sinks="self_attn.attention_sink_bias")

HETEROGENEOUS = (
    Family(("AfmoeForCausalLM",), read_afmoe, _AFMOE_NAMES),
    Family(("LagunaForCausalLM",), read_laguna, _LAGUNA_NAMES),
    Family(("Step3TextForCausalLM",), read_step3),
    Family(("Step3p5ForCausalLM", "Step3p7FlashForCausalLM"), read_step3p7),
    Family(("Step5ForCausalLM",), read_step5),
    Family(("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"), read_mimo_v2, _MIMO_NAMES),
    Family(("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM"), read_minimax_m3),
    Family(("DeciLMForCausalLM",), read_decilm, TensorNames()),
    Family(("DbrxForCausalLM",), read_dbrx),
    Family(("IQuestLoopCoderForCausalLM",), read_loop_coder),
    Family(("HrmTextForCausalLM",), read_hrm_text),
    Family(("NanbeigeForCausalLM",), read_nanbeige),
    Family(("DoryForCausalLM",), read_dory),
    Family(("DomynEdgeForCausalLM",), read_domyn_edge),
    Family(("PanguProMoEV2ForCausalLM",), read_pangu_pro),
    Family(("K2HorizonForCausalLM",), read_k2_horizon),
)
