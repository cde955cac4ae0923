"""Captured steps, replayed instead of launched operation by operation.

step_graphs        a step of each size captured as a graph
sizes              which sizes are captured
"""
