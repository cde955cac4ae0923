"""Weights in few bits: what checkpoints store, and what is made of dense ones.

reader          what a quantised checkpoint offers, and its parts among a model's weights
held            which parameters stay in few bits, and their bytes
ggml_blocks     GGUF's formats
methods         which reader takes a directory's quantization_config
gptq, awq       codes in int32 words, with zero points
compressed      compressed-tensors: int4, int8, FP8, MXFP4, NVFP4
modelopt        ModelOpt: NVFP4, FP8
mxfp4           gpt-oss's experts
bitsandbytes    NF4 and FP4, whose scales may be quantised too; LLM.int8
floats          E2M1 in groups, as MXFP4 and NVFP4 have it
fp8             E4M3 with a scale for a tensor, an output or a block
int_words       what the readers of packed words share
stored_tensors  a checkpoint's tensors under a family's names
rounding        dense weights, rounded as they are loaded
code_books      what codes stand for
"""
