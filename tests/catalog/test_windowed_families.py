"""Plain decoders with windows, and Jais 2: the defaults of transformers 5.24's configurations, and what is refused.

Small configs of each stand in ``tests/data/counted_configs.json``.
"""

from __future__ import annotations

import pytest
from counted_configs import SMALL, counted_config

from kvplan.catalog.reader import read_config
from kvplan.errors import KvplanError

_PUBLISHED: dict[str, tuple[tuple[int, ...], int]] = {
    "CwmForCausalLM": ((6144, 21504, 64, 48, 8, 128, 128256), 32_581_097_472),
    "Jais2ForCausalLM": ((3328, 26624, 32, 26, 26, 128, 150272), 8_090_401_280),
    "VaultGemmaForCausalLM": ((2304, 9216, 26, 8, 4, 256, 256000), 2_614_222_080),
}
"""Hidden and inner size, layers, heads, KV heads, head size, vocabulary; parameters."""


@pytest.mark.parametrize("architecture", _PUBLISHED)
def test_published_sizes(architecture: str) -> None:
    sizes, parameters = _PUBLISHED[architecture]
    config = dict(zip(SMALL, sizes, strict=False)) | {"architectures": [architecture], "torch_dtype": "bfloat16"}
    assert read_config(config, model_id="published").num_parameters == parameters


@pytest.mark.parametrize("windows", [None, [64, 64], [64, 64, 64, "none"]])
def test_windows_of_plamo_that_are_not_listed_are_refused(windows: object) -> None:
    config = counted_config("plamo 3", interleaved_sliding_window=windows)
    with pytest.raises(KvplanError, match="interleaved_sliding_window"):
        read_config(config, model_id="plamo")
