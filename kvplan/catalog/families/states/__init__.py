"""Models with layers that keep a state of each sequence instead of its tokens.

state       the mixers, and models made only of them: Mamba
delta       gated delta nets and linear attention beside attention: Qwen3-Next, Kimi Linear, Ling, MiniMax, AliceAI
hybrid      Mamba beside attention; short convolutions beside attention: LFM2
nemotron    Nemotron-H, Nemotron 3 and Puzzle: a block in each layer
glm_next    GLM 5.3 Flash
inkling     Inkling: convolutions of keys, values and outputs beside attention
qwen4       Qwen 4
"""
