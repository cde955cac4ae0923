"""Decoders whose layers are all attention and an MLP.

like_llama   a row for each family that is read as Llama is
readers      what a row says (``LlamaLike``), and what it cannot
own_keys     those with keys of their own: GPT-2, Falcon, BLOOM and others from before Llama, Phi, StarCoder 2;
             TeleChat 2, Step 1
"""

from kvplan_engine.checkpoints.families.dense.like_llama import LIKE_LLAMA
from kvplan_engine.checkpoints.families.dense.own_keys import DESCRIBED, OWN_KEYS

DENSE = (*LIKE_LLAMA, *OWN_KEYS, *DESCRIBED)
