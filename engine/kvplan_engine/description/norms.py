"""Which normalisations a layer has, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NormKind = Literal["rms", "rms_plus_one", "layer", "layer_plus_one", "layer_no_bias", "none", "rms_none"]
NormPlaces = Literal["before", "after", "both", "parallel", "parallel_two"]


@dataclass(frozen=True, slots=True)
class Norms:
    """rms_plus_one, layer_plus_one: the weight is stored minus one (Gemma, Nemotron). layer_no_bias: LayerNorm without
    a bias; none: without weight or bias; rms_none: RMSNorm without a weight. places: a block's norm stands before it,
    after it (OLMo 2), or both (Gemma 2); "parallel": attention and MLP read the same norm and are added to the residual
    together; "parallel_two": each reads its own.
    """

    kind: NormKind = "rms"
    eps: float = 1e-6
    places: NormPlaces = "before"


PRE_NORM = Norms()
"""RMSNorm before each block, as most families have it."""
