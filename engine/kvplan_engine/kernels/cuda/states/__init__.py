"""Layers with a state.

ops         their operations
launch      how their kernels are compiled
"""
