"""Models whose attention keeps latents or compressed vectors.

deepseek    latent attention (MLA): DeepSeek V2 to V3.2, Kimi K2, GLM 5, LongCat and their like
compressed  DeepSeek V4; shared: V4.1, whose layers share their vectors
hunyuan     Hunyuan 4
"""
