"""The parts that move information between tokens: attention of every kind, and layers with a state.

mixer_part                       what all of them have in common, and what they are made of
attention_part                   keys and values of each head, and the gate of what they give
latent_part                      one latent for all heads; the tokens that an index chooses
delta_part, mamba_part           states; short convolutions
"""
