"""Which FP8 checkpoints say that inputs of their products are rounded too, and that their weights keep knowing it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvplan_engine.checkpoints.quantised.compressed import rounds_inputs
from kvplan_engine.checkpoints.quantised.fp8 import float8_weight
from kvplan_engine.checkpoints.quantised.reader import as_tensors, take_parts

FLOAT8 = {"type": "float", "num_bits": 8, "dynamic": True, "strategy": "token"}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([{"input_activations": FLOAT8}], True),
        ([{"input_activations": FLOAT8}, {"input_activations": None}], False),
        ([{"weights": FLOAT8}], False),
        ([{"input_activations": FLOAT8 | {"type": "int"}}], False),
        ([], False),
    ],
    ids=["all", "some", "weights alone", "whole numbers", "no groups"],
)
def test_compressed_tensors_say_so_for_each_group(groups: list[dict[str, Any]], expected: bool) -> None:
    assert rounds_inputs({"config_groups": {f"group_{i}": group for i, group in enumerate(groups)}}) == expected


def test_it_stays_with_the_weight_among_a_models() -> None:
    codes, scale = torch.randn(4, 16).to(torch.float8_e4m3fn), torch.tensor([0.5])
    parts = [float8_weight("w", codes, scale, rounds_inputs=True), float8_weight("w", codes, scale)]
    assert not parts[0].can_follow(parts[1])
    weights = as_tensors("w", parts)
    assert [part.rounds_inputs for part in take_parts(weights, "w")] == [True, False]
    assert weights == {}
