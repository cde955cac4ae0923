"""Weights in few bits: what checkpoints store, and what is made of dense ones.

reader          an open checkpoint; what a quantised one offers, its tensors by a family's names, its parts among a
                model's weights
held            which parameters stay in few bits, and their bytes
ggml_blocks     GGUF's formats
words           codes in int32 words, with zero points: GPTQ, AWQ
compressed      compressed-tensors: int4, int8, FP8, MXFP4, NVFP4
bitsandbytes    NF4 and FP4, whose scales may be quantised too; LLM.int8
floats          E2M1 in groups (MXFP4, NVFP4: ModelOpt, gpt-oss's experts); E4M3 with a scale for a tensor, an output
                or a block (FP8); what codes stand for
rounding        dense weights, rounded as they are loaded
"""
