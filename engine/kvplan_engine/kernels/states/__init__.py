"""What layers with a state compute: a state is read and written where it lies in the pool.

rows          where a state lies, and which sequences a step computes
interface     StateOps: the operations, each declared once
convolution   a causal convolution: its weights, and its definition
delta         the gated delta rule: its numbers, and its definition
mamba         the recurrences of Mamba and Mamba 2: their weights, and their definitions
gating        what follows a recurrence: a gate and a norm
torch_states  the definition of every operation, in plain torch
"""
