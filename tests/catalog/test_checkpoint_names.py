"""Checkpoints under the names of transformers' own modelling code: every tensor is found, and the sizes agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import Tensors, write_checkpoint

from independent_count import CORRECTIONS, build_meta_model
from kvplan.catalog.checkpoint.stored import count_stored
from kvplan.catalog.models import find_profile, resolve_model
from kvplan.estimate.vllm.stored import stored_scale

NAMES = (
    *("gpt2", "opt-125m", "bloom", "falcon-7b", "phi-2", "mixtral-8x7b", "deepseek-v2-lite", "gemma-3-4b"),
    *("qwen3.5-9b", "whisper-large-v3", "t5-base", "mamba-2.8b", "nemotron-h-56b"),
)


def _tensors(config: dict[str, object]) -> Tensors:
    model = build_meta_model(config)
    found = dict(model.named_parameters(remove_duplicate=True))
    found |= {name: each for name, each in model.named_buffers() if name.rsplit(".", 1)[-1] in CORRECTIONS}
    return {name: ("BF16", tuple(each.shape)) for name, each in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_in_its_part(tmp_path: Path, name: str) -> None:
    profile = find_profile(name)
    assert profile is not None
    spec = resolve_model(str(write_checkpoint(tmp_path, profile["config"], _tensors(profile["config"]))))
    assert spec.checkpoint is not None
    assert count_stored(spec.checkpoint.language_model) == spec.num_parameters
    scale = stored_scale(spec, "bfloat16")
    assert [*scale.layers, scale.outside] == pytest.approx([1.0] * (spec.num_layers + 1), rel=1e-4)
    towers = sum(extra.num_parameters or 0 for extra in spec.extras if extra.kind != "multi_token_prediction")
    assert count_stored(spec.checkpoint.towers) == towers
