"""Latent attention: one vector per token for all heads.

deepseek    DeepSeek V2 to V3.2, Kimi K2, GLM 4.7 Flash and 5, Mistral 4; MiniCPM3, Youtu-LLM; LongCat Flash and Flash
            Lite; A.X K1, openPangu Ultra MoE; Sarvam 105B, Mistral Large 3
compressed  DeepSeek V4: compressed attention; V4.1: the same, shared by layers; Hunyuan 4
parts       latent attention, its index and several residual streams, by the keys that all of these share
"""

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.latent.compressed import read_deepseek_v4, read_deepseek_v41, read_hunyuan4
from kvplan_engine.checkpoints.families.latent.deepseek import (
    read_axk1,
    read_deepseek,
    read_longcat,
    read_longcat_ngram,
    read_minicpm3,
    read_mistral_large3,
    read_pangu_ultra,
    read_sarvam_mla,
    read_youtu,
)
from kvplan_engine.checkpoints.families.latent.parts import LATENT_NAMES, MISTRAL4_NAMES

LATENT = (
    Family(
        (
            *("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"),
            *("GlmMoeDsaForCausalLM", "Glm4MoeLiteForCausalLM"),
        ),
        read_deepseek,
        LATENT_NAMES,
    ),
    Family(("Mistral4ForCausalLM",), read_deepseek, MISTRAL4_NAMES),
    Family(("MistralLarge3ForCausalLM",), read_mistral_large3),
    Family(("SarvamMLAForCausalLM",), read_sarvam_mla),
    Family(("AXK1ForCausalLM",), read_axk1),
    Family(("PanguUltraMoEForCausalLM",), read_pangu_ultra),
    Family(("MiniCPM3ForCausalLM",), read_minicpm3, LATENT_NAMES),
    Family(("YoutuForCausalLM",), read_youtu, LATENT_NAMES),
    Family(("LongcatFlashForCausalLM",), read_longcat),
    Family(("HYV4ForCausalLM",), read_hunyuan4),
    Family(("LongcatFlashNgramForCausalLM",), read_longcat_ngram),
    Family(("DeepseekV41ForCausalLM",), read_deepseek_v41),
    Family(("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration"), read_deepseek_v4),
)
