"""Layers with a state of fixed size, alone or among attention.

mamba         Mamba, Falcon Mamba, Mamba 2; Jamba; Bamba, Granite 4; Falcon H1
mamba_blocks  Nemotron H, Nemotron 3; Zamba 2
delta         Qwen3-Next, Qwen3.5 and 3.6, OLMo Hybrid; Kimi Linear and K3
linear        MiniMax Text 01 and M1; Ling and Ring 2.5, Ling 3; LFM2; AliceAI
counted       Qwen 4; GLM 5.3 Flash; Inkling: convolutions beside attention
parts         states by the keys that several of these share
"""

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.states.counted import read_glm_next, read_inkling, read_qwen4
from kvplan_engine.checkpoints.families.states.delta import KIMI_LINEAR, QWEN3_NEXT
from kvplan_engine.checkpoints.families.states.linear import (
    LFM2,
    read_alice,
    read_bailing_hybrid,
    read_bailing_v3,
    read_minimax,
)
from kvplan_engine.checkpoints.families.states.mamba import BAMBA, FALCON_H1, JAMBA, MAMBA
from kvplan_engine.checkpoints.families.states.mamba_blocks import NEMOTRON_H, read_zamba2

STATES = (
    *(*MAMBA, *JAMBA, *BAMBA, *FALCON_H1, *NEMOTRON_H),
    *(*LFM2, *QWEN3_NEXT, *KIMI_LINEAR),
    Family(("AliceAIForCausalLM",), read_alice),
    Family(("Zamba2ForCausalLM",), read_zamba2),
    Family(("MiniMaxText01ForCausalLM", "MiniMaxForCausalLM"), read_minimax),
    Family(("BailingMoeV2_5ForCausalLM",), read_bailing_hybrid),
    Family(("BailingMoeV3ForCausalLM",), read_bailing_v3),
    Family(("Glm5NextForCausalLM",), read_glm_next),
    Family(("InklingForCausalLM", "InklingForConditionalGeneration"), read_inkling),
    Family(("Qwen4ExpForCausalLM",), read_qwen4),
)
