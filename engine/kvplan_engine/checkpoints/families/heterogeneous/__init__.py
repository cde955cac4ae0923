"""Layers that differ in more than what they keep: heads, gates, value sizes, or a part left out.

mixtures   AFMoE (Trinity), Laguna, MiMo V2, MiniMax M3, DBRX, openPangu Pro MoE V2, K2 Horizon
step       Step 3; Step 3.5 and 3.7 Flash; Step 5
dense      Nemotron-NAS, Domyn Edge; layers that are gone through again: HRM-Text, Dory, Nanbeige, IQuest Loop Coder
"""

from kvplan_engine.checkpoints.families.heterogeneous.dense import DENSE
from kvplan_engine.checkpoints.families.heterogeneous.mixtures import MIXTURES
from kvplan_engine.checkpoints.families.heterogeneous.step import STEP

HETEROGENEOUS = (*MIXTURES, *STEP, *DENSE)
