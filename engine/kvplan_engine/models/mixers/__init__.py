"""The parts that move information between tokens: attention of every kind, and layers with a state.

mixer_part     what all of them have in common
making         which part computes each kind of mixer
attention_part, attention_gate   keys and values of each head
latent_part, index_part          one latent for all heads; the tokens that an index chooses
delta_part, mamba1_part, mamba2_part, short_conv_part   states
"""
