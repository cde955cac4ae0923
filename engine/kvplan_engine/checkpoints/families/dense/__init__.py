"""Decoders whose layers are all attention and an MLP: one file for each family.

``llama`` is what most of them build on; each says in its first line how it differs.
"""

from kvplan_engine.checkpoints.families.dense.apertus import APERTUS
from kvplan_engine.checkpoints.families.dense.arcee import ARCEE
from kvplan_engine.checkpoints.families.dense.baichuan import BAICHUAN
from kvplan_engine.checkpoints.families.dense.bloom import BLOOM
from kvplan_engine.checkpoints.families.dense.chatglm import CHATGLM
from kvplan_engine.checkpoints.families.dense.cohere import COHERE
from kvplan_engine.checkpoints.families.dense.ernie import ERNIE
from kvplan_engine.checkpoints.families.dense.exaone import EXAONE
from kvplan_engine.checkpoints.families.dense.falcon import FALCON
from kvplan_engine.checkpoints.families.dense.gemma import GEMMA
from kvplan_engine.checkpoints.families.dense.glm import GLM, GLM4
from kvplan_engine.checkpoints.families.dense.gpt2 import GPT2
from kvplan_engine.checkpoints.families.dense.gpt_bigcode import GPT_BIGCODE
from kvplan_engine.checkpoints.families.dense.gpt_neox import GPT_NEOX
from kvplan_engine.checkpoints.families.dense.gptj import CODEGEN, GPTJ
from kvplan_engine.checkpoints.families.dense.granite import GRANITE
from kvplan_engine.checkpoints.families.dense.helium import HELIUM
from kvplan_engine.checkpoints.families.dense.hunyuan import HUNYUAN
from kvplan_engine.checkpoints.families.dense.hyperclovax import HYPERCLOVAX
from kvplan_engine.checkpoints.families.dense.internlm import INTERNLM2, INTERNLM3
from kvplan_engine.checkpoints.families.dense.jais2 import JAIS2
from kvplan_engine.checkpoints.families.dense.llama import LLAMA, TELEFLM
from kvplan_engine.checkpoints.families.dense.minicpm import MINICPM
from kvplan_engine.checkpoints.families.dense.mistral import MINISTRAL, MINISTRAL3, MISTRAL
from kvplan_engine.checkpoints.families.dense.mpt import MPT
from kvplan_engine.checkpoints.families.dense.nemotron import NEMOTRON
from kvplan_engine.checkpoints.families.dense.olmo import OLMO, OLMO2
from kvplan_engine.checkpoints.families.dense.opt import OPT
from kvplan_engine.checkpoints.families.dense.orion import ORION
from kvplan_engine.checkpoints.families.dense.pangu import PANGU
from kvplan_engine.checkpoints.families.dense.phi import PHI
from kvplan_engine.checkpoints.families.dense.phi3 import PHI3, PHI4_MULTIMODAL
from kvplan_engine.checkpoints.families.dense.qwen import QWEN
from kvplan_engine.checkpoints.families.dense.qwen2 import MIMO, QWEN2
from kvplan_engine.checkpoints.families.dense.qwen3 import QWEN3
from kvplan_engine.checkpoints.families.dense.seed_oss import SEED_OSS
from kvplan_engine.checkpoints.families.dense.smollm3 import SMOLLM3
from kvplan_engine.checkpoints.families.dense.solar import SOLAR
from kvplan_engine.checkpoints.families.dense.stablelm import STABLELM
from kvplan_engine.checkpoints.families.dense.starcoder2 import STARCODER2

DENSE = (
    APERTUS,
    ARCEE,
    BAICHUAN,
    BLOOM,
    CHATGLM,
    COHERE,
    ERNIE,
    EXAONE,
    FALCON,
    GEMMA,
    GLM,
    GLM4,
    GPT2,
    GPT_BIGCODE,
    GPT_NEOX,
    GPTJ,
    CODEGEN,
    GRANITE,
    HELIUM,
    HUNYUAN,
    HYPERCLOVAX,
    INTERNLM2,
    INTERNLM3,
    JAIS2,
    LLAMA,
    MIMO,
    MINICPM,
    MINISTRAL,
    MINISTRAL3,
    MISTRAL,
    MPT,
    NEMOTRON,
    OLMO,
    OLMO2,
    OPT,
    ORION,
    PANGU,
    PHI,
    PHI3,
    PHI4_MULTIMODAL,
    QWEN,
    QWEN2,
    QWEN3,
    SEED_OSS,
    SMOLLM3,
    SOLAR,
    STABLELM,
    STARCODER2,
    TELEFLM,
)
