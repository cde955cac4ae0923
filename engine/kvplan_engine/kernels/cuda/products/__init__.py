"""Products that torch does not compute alone.

quantised   with weights in few bits
float8      of many rows with FP8 weights, in float8 on both sides
skinny      of few rows with weights as published
lora        what adapters add to a product
"""
