"""The kernels' argument structures.

common      those that every model needs
parts       those of mixtures of experts and layers with a state
products    those of products with quantised weights, adapters, and few rows
draws       those of sampling
"""
