"""How long a step takes on one rank, by data sheet or by measured coefficients.

work                what one rank reads and computes in a step, for every parallel layout
collectives         what ranks send each other, and over which link
clocks              seconds of a step and of a prompt: by data sheet
amd_kernels         what AMD's kernels reach of theirs
measured_clock      the same by coefficients that were measured
step_time           seconds of one step, in coefficients that ``kvplan calibrate`` fits
rank_step           one step on one rank, in coefficients of measured kernels
blackwell_experts   vLLM's experts on B200 in the formats and releases that no fit is of
expert_backends     the kernels of a mixture's experts: those asked for, or those of the engine's release
release_kernels     mixtures of older releases than the tables'
block_kernels       8-bit floats in blocks, and latent attention with them, of such releases
sparse_latents      latent attention that chooses the tokens to attend to
widened_weights     weights in few bits that Marlin widens on A100
host                what launching and the engine's own work add to a step
step_terms          what a step's time consists of, for people
"""
