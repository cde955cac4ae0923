"""Products that torch does not compute alone.

quantised   with weights in few bits; quantised_launch: how they are compiled; float8: by torch, in float8 on both sides
skinny      of few rows with weights as published; skinny_launch: how they are compiled
lora        what adapters add to a product
"""
