"""Products that torch does not compute alone.

quantised   with weights in few bits; by torch, in float8 on both sides
skinny      of few rows with weights as published
lora        what adapters add to a product
"""
