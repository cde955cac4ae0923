"""Layers that differ in more than what they keep: heads, gates, value sizes, or a part left out.

afmoe       AFMoE (Trinity)
laguna      Laguna
step3p7     Step 3.5 and 3.7 Flash
mimo_v2     MiMo V2
minimax_m3  MiniMax M3
decilm      Nemotron-NAS
dbrx        DBRX
"""

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.heterogeneous.afmoe import read_afmoe
from kvplan_engine.checkpoints.families.heterogeneous.dbrx import read_dbrx
from kvplan_engine.checkpoints.families.heterogeneous.decilm import read_decilm
from kvplan_engine.checkpoints.families.heterogeneous.laguna import read_laguna
from kvplan_engine.checkpoints.families.heterogeneous.mimo_v2 import read_mimo_v2
from kvplan_engine.checkpoints.families.heterogeneous.minimax_m3 import read_minimax_m3
from kvplan_engine.checkpoints.families.heterogeneous.step3p7 import read_step3p7

HETEROGENEOUS = (
    Family(("AfmoeForCausalLM",), ("afmoe",), read_afmoe),
    Family(("LagunaForCausalLM",), ("laguna",), read_laguna),
    Family(("Step3p5ForCausalLM", "Step3p7FlashForCausalLM"), ("step3p5", "step3p7_text"), read_step3p7),
    Family(("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"), ("mimo_v2_flash", "mimo_v2"), read_mimo_v2),
    Family(
        ("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM"), ("minimax_m3", "minimax_m3_vl_text"), read_minimax_m3
    ),
    Family(("DeciLMForCausalLM",), ("nemotron-nas",), read_decilm),
    Family(("DbrxForCausalLM",), ("dbrx",), read_dbrx),
)
