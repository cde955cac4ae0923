"""Sizes of weights beside figures computed from the published configs, apart from kvplan's code.

``test_size_table`` has those of caches. ``docs/peers.md`` shows the same figures beside other planners' and says what
each rests on. Parameters are counted as transformers 5.23 builds the model with its head.
"""

from __future__ import annotations

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.estimate.answer import EstimateRequest, make_estimate

TOKENS = 32_768
FP8_BLOCK = 128**2
MXFP4_EXPERTS = 24 * 32 * 3 * 2880 * 2880

WEIGHT_BYTES = {
    "llama-3.1-8b": 8_030_261_248 * 2,
    "qwen3-32b": 32_762_123_264 * 2,
    "phi-3.5-mini": 3_821_079_552 * 2,
    "gpt-oss-20b": MXFP4_EXPERTS * 4.25 / 8 + (20_914_757_184 - MXFP4_EXPERTS) * 2,
    # 1 B for each fp8 parameter, 2 B for what stays bfloat16, 4 B of scale for a block
    "deepseek-v3": 671_026_419_200 + 1_960_809_984 + 669_065_609_216 / FP8_BLOCK * 4,
    "deepseek-v3.2": 671_877_944_064 + 1_960_825_600 + 669_917_118_464 / FP8_BLOCK * 4,
}


@pytest.mark.parametrize("model", WEIGHT_BYTES)
def test_weights_are_those_counted_by_hand(model: str) -> None:
    found = make_estimate(resolve_model(model), EstimateRequest(TOKENS))
    # scales of blocks at the edges of a matrix are rounded up, which the figures here leave out
    assert found.weights.total_bytes + found.extra_weight_bytes == pytest.approx(WEIGHT_BYTES[model], rel=1e-5)
