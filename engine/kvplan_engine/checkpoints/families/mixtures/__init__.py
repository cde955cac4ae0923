"""Decoders with a mixture of experts in some or all layers, behind ordinary attention.

table   every family: its reader and its row
parts   what they share: which layers have experts, the usual keys and names
gguf    mixtures in GGUF files
"""

from kvplan_engine.checkpoints.families.mixtures.table import MIXTURES

__all__ = ["MIXTURES"]
