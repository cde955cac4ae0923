"""Models whose attention is softmax over keys and values of heads, with an index or a window or without.

plain            decoders with the same layer throughout
classic          decoders from before Llama
windows          each family's rule for sliding windows
mixtures         mixtures of experts
heterogeneous    layers that differ in heads, head sizes or feed-forward
step             Step 5: an index of pools of tokens beside windows
gemma            Gemma 3n and 4: per-layer embeddings, shared caches
domyn            heads of each layer's own size: Domyn Edge
pangu            openPangu Pro MoE V2
k2_horizon       values from a mixture: K2 Horizon
loops            layers that are gone through again: HRM-Text, Dory, Nanbeige, IQuest Loop Coder
encoder_decoder  cross attention: T5, Whisper, Llama 3.2 Vision
"""
