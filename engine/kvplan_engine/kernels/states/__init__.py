"""What layers with a state compute: a state is read and written where it lies in the pool.

rows        where a state lies, and which sequences a step computes
operations  StateOps: each operation declared once, its weights, and its definition in plain torch
"""
