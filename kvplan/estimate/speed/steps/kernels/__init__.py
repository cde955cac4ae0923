"""Where kernels differ from those that a fit or a data sheet speaks for: by release, by backend, by GPU.

expert_backends     the kernels of a mixture's experts: those asked for, or those of the engine's release
blackwell_experts   vLLM's experts on B200 in the formats and releases that no fit is of
sglang_experts      SGLang's experts on Blackwell by model, and what surrounds Triton's by release
routing_kernels     routing and norms over ranks, where a model's take more kernels than the tables'
release_kernels     mixtures of older releases than the tables'
block_kernels       8-bit floats in blocks, and latent attention with them, of such releases
sparse_latents      latent attention that chooses the tokens to attend to
few_bits            experts in MXFP4 and in integers of 4 bits
widened_weights     weights in few bits that Marlin widens on A100
state_scans         prompts through gated delta layers
static_scales       8-bit products whose activations' scales the checkpoint has
tile_rows           whole tiles of rows, which an H20 does not hide
amd_kernels         what AMD's GPUs reach of their data sheets
"""
