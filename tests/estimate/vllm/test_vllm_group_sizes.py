"""Groups of weights that vLLM refuses: of a size without kernels, and of one that no product's inputs are cut into."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli import main

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
PACKED = {"group_0": {"weights": {"num_bits": 4, "group_size": 128, "strategy": "group"}, "targets": ["Linear"]}}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": PACKED}


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(shlex.split(f"{words} --gpu l4 --json"))
    return code, capsys.readouterr().err


def config(folder: Path, section: dict[str, Any], *, intermediate_size: int = 1536) -> Path:
    values = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "vocab_size": 4096}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "torch_dtype": "float16"}
    path = folder / "config.json"
    sizes = {"intermediate_size": intermediate_size, "max_position_embeddings": 4096}
    path.write_text(json.dumps(values | heads | sizes | {"quantization_config": section}))
    return path


@pytest.mark.parametrize("name", ["awq", "gptq", "int4"])
def test_groups_that_do_not_divide_a_width_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """SmolLM2 135M's layers are 576 wide: 4.5 groups of 128, which is the usual size, 9 of 64 and 18 of 32."""
    code, said = run(f"estimate smollm2-135m --quantization {name}", capsys)
    assert code == 2
    assert "has 576 inputs, which are no whole groups of 128: vLLM refuses such" in said
    assert "--group-size 32 or 64 or -1" in said
    for size in (64, 32, -1):
        assert run(f"estimate smollm2-135m --quantization {name} --group-size {size}", capsys)[0] == 0
    code, said = run(f"estimate smollm2-135m --quantization {name} --group-size 48", capsys)
    assert code == 2 and "There are no kernels for groups of 48." in said


def test_the_own_engine_cuts_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("estimate smollm2-135m --quantization awq --engine kvplan", capsys)[0] == 0


@pytest.mark.parametrize(
    ("section", "is_refused"), [(AWQ, True), (COMPRESSED, True), (GPTQ, False), (AWQ | {"group_size": 64}, False)]
)
def test_a_rank_must_have_whole_groups(
    section: dict[str, Any], is_refused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1536 / 8 are 1.5 groups of 128, 3 of 64. GPTQ's kernels may hold scales of all ranks."""
    path = config(tmp_path, section)
    assert run(f"estimate {path} --tp 4", capsys)[0] == 0
    code, said = run(f"estimate {path} --tp 8", capsys)
    assert code == (2 if is_refused else 0)
    assert ("mlp.down_proj has 192 inputs on each GPU, which are no whole groups of 128" in said) is is_refused


def test_modules_that_are_left_alone_need_no_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = config(tmp_path, AWQ, intermediate_size=1600)
    assert run(f"estimate {refused}", capsys)[0] == 2
    left = config(tmp_path, AWQ | {"modules_to_not_convert": ["down_proj"]}, intermediate_size=1600)
    assert run(f"estimate {left}", capsys)[0] == 0
