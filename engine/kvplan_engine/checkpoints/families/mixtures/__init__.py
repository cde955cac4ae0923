"""Decoders with a mixture of experts in some or all layers, behind ordinary attention.

table      every family that is measured: its reader and its row
described  those that are not
parts      what they share: which layers have experts, the usual keys and names; mixtures in GGUF files
"""

from kvplan_engine.checkpoints.families.mixtures.described import DESCRIBED
from kvplan_engine.checkpoints.families.mixtures.table import TABLE

MIXTURES = (*TABLE, *DESCRIBED)

__all__ = ["MIXTURES"]
