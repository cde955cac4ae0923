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
