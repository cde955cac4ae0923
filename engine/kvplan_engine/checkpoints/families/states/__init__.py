"""Layers with a state of fixed size, alone or among attention.

mamba        Mamba, Falcon Mamba, Mamba 2
jamba        Jamba
bamba        Bamba, Granite 4
falcon_h1    Falcon H1
nemotron_h   Nemotron H, Nemotron 3
zamba2       Zamba 2
alice        AliceAI
qwen3_next   Qwen3-Next, Qwen3.5 and 3.6, OLMo Hybrid
kimi_linear  Kimi Linear and K3
lfm2         LFM2
minimax      MiniMax Text 01 and M1
bailing      Ling and Ring 2.5, Ling 3
glm_next     GLM 5.3 Flash
inkling      Inkling: convolutions beside attention
qwen4        Qwen 4
parts        states by the keys that several of these share
"""

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.states import (
    bamba,
    falcon_h1,
    jamba,
    kimi_linear,
    lfm2,
    mamba,
    nemotron_h,
    qwen3_next,
)
from kvplan_engine.checkpoints.families.states.alice import read_alice
from kvplan_engine.checkpoints.families.states.bailing import read_bailing_hybrid, read_bailing_v3
from kvplan_engine.checkpoints.families.states.glm_next import read_glm_next
from kvplan_engine.checkpoints.families.states.inkling import read_inkling
from kvplan_engine.checkpoints.families.states.minimax import read_minimax
from kvplan_engine.checkpoints.families.states.qwen4 import read_qwen4
from kvplan_engine.checkpoints.families.states.zamba2 import read_zamba2

STATES = (
    *mamba.FAMILIES,
    *jamba.FAMILIES,
    *bamba.FAMILIES,
    *falcon_h1.FAMILIES,
    *nemotron_h.FAMILIES,
    *lfm2.FAMILIES,
    *qwen3_next.FAMILIES,
    *kimi_linear.FAMILIES,
    Family(("AliceAIForCausalLM",), read_alice),
    Family(("Zamba2ForCausalLM",), read_zamba2),
    Family(("MiniMaxText01ForCausalLM",), read_minimax),
    Family(("BailingMoeV2_5ForCausalLM",), read_bailing_hybrid),
    Family(("BailingMoeV3ForCausalLM",), read_bailing_v3),
    Family(("Glm5NextForCausalLM",), read_glm_next),
    Family(("InklingForCausalLM",), read_inkling),
    Family(("InklingForConditionalGeneration",), read_inkling),
    Family(("MiniMaxForCausalLM",), read_minimax),
    Family(("Qwen4ExpForCausalLM",), read_qwen4),
)
