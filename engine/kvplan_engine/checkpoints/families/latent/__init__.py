"""Latent attention: one vector per token for all heads.

deepseek    DeepSeek V2 to V3.2, Kimi K2, GLM 4.7 Flash and 5, Mistral 4; MiniCPM3, Youtu-LLM; LongCat Flash and Flash
            Lite; A.X K1, openPangu Ultra MoE; Sarvam 105B, Mistral Large 3
compressed  DeepSeek V4: compressed attention; V4.1: the same, shared by layers; Hunyuan 4
parts       latent attention, its index and several residual streams, by the keys that all of these share
"""

from kvplan_engine.checkpoints.families.latent.compressed import COMPRESSED
from kvplan_engine.checkpoints.families.latent.deepseek import LIKE_DEEPSEEK

LATENT = (*LIKE_DEEPSEEK, *COMPRESSED)
