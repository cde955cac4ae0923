"""What the formats of a KV cache cost, from the losses of each token."""

from __future__ import annotations

import math

import pytest

from kv_quality import Quality, print_table


def test_the_table_compares_every_format_with_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    exact = Quality("float32", 46_080, (math.log(2), math.log(8)))
    other = Quality("fp8", 11_520, (math.log(2), math.log(8) + 2 * math.log(1.01)))
    assert exact.perplexity == pytest.approx(4.0)
    print_table([exact, other])
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["float32", "46,080", "4.0000", "+0.000%", "0.00000", "nat"],
        ["fp8", "11,520", "4.0400", "+1.000%", "0.00995", "nat"],
    ]
