"""Decoders with a mixture of experts in some or all layers, behind ordinary attention.

parts      what they share: which layers have experts, the usual keys and names
gguf       mixtures in GGUF files
mixtral    Mixtral, MiniMax M2
qwen       Qwen2-MoE, Qwen3-MoE
olmoe      OLMoE, FlexOlmo
glm        GLM 4.5, dots.llm1, Hunyuan 3: chosen as in DeepSeek V3
deepseek   DeepSeek-MoE, Bailing
ernie      ERNIE 4.5
granite    Granite 3
hunyuan    Hunyuan-A13B
phimoe     Phi-3.5-MoE
"""

from kvplan_engine.checkpoints.families.mixtures import (
    deepseek,
    ernie,
    glm,
    granite,
    hunyuan,
    mixtral,
    olmoe,
    phimoe,
    qwen,
)

MIXTURES = (
    *mixtral.FAMILIES,
    *qwen.FAMILIES,
    *olmoe.FAMILIES,
    *glm.FAMILIES,
    *deepseek.FAMILIES,
    *ernie.FAMILIES,
    *granite.FAMILIES,
    *hunyuan.FAMILIES,
    *phimoe.FAMILIES,
)
