"""Latent attention: one vector per token for all heads.

deepseek     with experts: DeepSeek V2 to V3.2, Kimi K2, GLM 4.7 Flash and 5, Mistral 4
dense        without: MiniCPM3, Youtu-LLM
longcat      LongCat Flash and Flash Lite
deepseek_v4  DeepSeek V4: compressed attention
deepseek_v41 DeepSeek V4.1: the same, shared by layers
sarvam       Sarvam 105B, Mistral Large 3
hunyuan4     Hunyuan 4
streams      what gates several residual streams
more_norms   A.X K1, openPangu Ultra MoE
parts        latent attention and its index, by the keys that all of these share
"""

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.latent.deepseek import read_deepseek
from kvplan_engine.checkpoints.families.latent.deepseek_v4 import read_deepseek_v4
from kvplan_engine.checkpoints.families.latent.deepseek_v41 import read_deepseek_v41
from kvplan_engine.checkpoints.families.latent.dense import read_minicpm3, read_youtu
from kvplan_engine.checkpoints.families.latent.hunyuan4 import read_hunyuan4
from kvplan_engine.checkpoints.families.latent.longcat import read_longcat, read_longcat_ngram
from kvplan_engine.checkpoints.families.latent.more_norms import read_axk1, read_pangu_ultra
from kvplan_engine.checkpoints.families.latent.parts import LATENT_NAMES, MISTRAL4_NAMES
from kvplan_engine.checkpoints.families.latent.sarvam import read_mistral_large3, read_sarvam_mla

_DEEPSEEK = {
    "DeepseekV2ForCausalLM": ("deepseek_v2",),
    "DeepseekV3ForCausalLM": ("deepseek_v3", "kimi_k2"),
    "DeepseekV32ForCausalLM": ("deepseek_v32",),
    "GlmMoeDsaForCausalLM": ("glm_moe_dsa",),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite",),
}

LATENT = (
    *(Family((name,), types, read_deepseek, LATENT_NAMES) for name, types in _DEEPSEEK.items()),
    Family(("Mistral4ForCausalLM",), ("mistral4",), read_deepseek, MISTRAL4_NAMES),
    Family(("MistralLarge3ForCausalLM",), (), read_mistral_large3),
    Family(("SarvamMLAForCausalLM",), ("sarvam_mla",), read_sarvam_mla),
    Family(("AXK1ForCausalLM",), ("axk1",), read_axk1),
    Family(("PanguUltraMoEForCausalLM",), ("pangu_ultra_moe",), read_pangu_ultra),
    Family(("MiniCPM3ForCausalLM",), ("minicpm3",), read_minicpm3, LATENT_NAMES),
    Family(("YoutuForCausalLM",), ("youtu",), read_youtu, LATENT_NAMES),
    Family(("LongcatFlashForCausalLM",), ("longcat_flash",), read_longcat),
    Family(("HYV4ForCausalLM",), ("hy_v4",), read_hunyuan4),
    Family(("LongcatFlashNgramForCausalLM",), (), read_longcat_ngram),
    Family(("DeepseekV41ForCausalLM",), ("deepseek_v41",), read_deepseek_v41),
    Family(("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration"), ("deepseek_v4",), read_deepseek_v4),
)
