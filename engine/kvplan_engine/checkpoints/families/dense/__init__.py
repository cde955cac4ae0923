"""Decoders whose layers are all attention and an MLP.

gpt2     GPT-2
llama    Llama, and ``llama``, which the families below build on
mistral  Mistral: Llama with a sliding window
qwen2    Qwen2: Llama with biases on queries, keys and values
qwen3    Qwen3: Llama with norms of each query and key head
"""

from kvplan_engine.checkpoints.families.dense.gpt2 import GPT2
from kvplan_engine.checkpoints.families.dense.llama import LLAMA
from kvplan_engine.checkpoints.families.dense.mistral import MISTRAL
from kvplan_engine.checkpoints.families.dense.qwen2 import QWEN2
from kvplan_engine.checkpoints.families.dense.qwen3 import QWEN3

DENSE = (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3)
