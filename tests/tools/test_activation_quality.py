"""What rounded activations cost, from the losses of each token."""

from __future__ import annotations

import math

from activation_quality import line_of


def test_a_line_compares_rounded_with_exact() -> None:
    exact = (math.log(2), math.log(8))
    rounded = (math.log(2) - math.log(1.01), math.log(8) + 3 * math.log(1.01))
    assert line_of("model-q4_0", exact, rounded).split() == [
        "model-q4_0",
        "4.0000",
        "4.0400",
        "+1.000%",
        "0.01990",
        "nat",
    ]
