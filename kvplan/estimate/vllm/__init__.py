"""vLLM's start-up predicted, release by release: the memory of each rank, blocks, and what it prints or fails with.

prediction       ``predict_vllm``: everything put together
learned          a prediction that keeps what a start-up of the same model and GPU showed
memo             what predictions of one model share, kept with the model itself
ranges           how far the KV pool can lie from it, and why
settings         what a release makes of the user's settings on a GPU (``VllmSettings``)
block_sizes, cache_dtypes    its defaults for a block's tokens and the KV cache's dtype, by model and GPU
weights, stored, rope_tables    a rank's share of the weights, scaled to what a checkpoint stores; its rotary tables
division         whether vLLM can divide the model over the ranks
drafters         what a drafter takes beside the model
runners          which of vLLM's two model runners has a model, and what the second one keeps
activation       the peak of the profile run: encoder, decoder, sampler
compilation, leftovers   what a first start takes while it compiles, and what it cannot give back
trials, local_memory     what it takes to try recurrent layers' kernels out, and what the driver keeps for spills
vision           what the profile run feeds a vision encoder; encoders: the largest image or video of each family
modalities       how many images, videos and sounds a prompt may have (``--limit-mm-per-prompt``)
contexts         whether a sequence's cache can be divided over ranks (``--decode-context-parallel-size``)
offloading       weights in the host's memory (``--cpu-offload-gb``)
budget, kernels  memory outside torch, CUDA graphs, kernels' workspaces and paddings
groups, pages    how layers of several kinds share one pool of blocks; shared_pages: those of DeepSeek V4.1
packing          layers of unequal pages side by side in a block
prefix_hits      what the prefix cache finds, and what sequences hold together
tuples           how releases before 0.29 lay out compressed attention
first_awq, torch_allocator   AWQ before 0.3.0, and PyTorch's allocator, which decided its peak
"""
