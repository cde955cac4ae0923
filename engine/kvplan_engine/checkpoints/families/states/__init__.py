"""Layers with a state of fixed size, alone or among attention.

mamba         Mamba, Falcon Mamba, Mamba 2; Jamba; Bamba, Granite 4; Falcon H1
mamba_blocks  Nemotron H, Nemotron 3; Zamba 2
delta         Qwen3-Next, Qwen3.5 and 3.6, OLMo Hybrid; Kimi Linear and K3
linear        MiniMax Text 01 and M1; Ling and Ring 2.5, Ling 3; LFM2; AliceAI
counted       Qwen 4; GLM 5.3 Flash; Inkling: convolutions beside attention
parts         states by the keys that several of these share
"""

from kvplan_engine.checkpoints.families.states.counted import COUNTED
from kvplan_engine.checkpoints.families.states.delta import DELTA
from kvplan_engine.checkpoints.families.states.linear import LINEAR
from kvplan_engine.checkpoints.families.states.mamba import MAMBA
from kvplan_engine.checkpoints.families.states.mamba_blocks import BLOCKS

STATES = (*MAMBA, *BLOCKS, *DELTA, *LINEAR, *COUNTED)
