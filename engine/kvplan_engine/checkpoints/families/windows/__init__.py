"""Layers of which some keep a window or a chunk of the tokens and some keep all: readers, and their rows below them.

gemma     Gemma 2, 3, 3n and 4, VaultGemma, Rnj-1
readers   the others: Command R7B, EXAONE 4, gpt-oss, Granite with windows, GPT-Neo, Llama 4, Muse, OLMo 3, PLaMo 3, CWM
"""

from kvplan_engine.checkpoints.families.windows.gemma import GEMMA
from kvplan_engine.checkpoints.families.windows.readers import OTHERS

WINDOWS = (*GEMMA, *OTHERS)
