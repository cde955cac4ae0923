"""Generated checkpoints in mixed formats: kvplan's bytes are those of vLLM's modules, counted one by one."""

from __future__ import annotations

import pytest

from check_quantization import check_case, check_profile
from quantization_cases.models import MODELS, SmallModel, check_against_transformers

CASES = 400


def test_generated_checkpoints_are_sized_as_vllm_builds_them() -> None:
    outcomes = [check_case(seed) for seed in range(CASES)]
    sized = [outcome for outcome in outcomes if outcome.counted is not None]
    assert len(sized) > 0.8 * CASES
    assert {outcome.loader for outcome in sized} == {
        *("compressed-tensors", "awq", "gptq", "auto-round", "bitsandbytes", "modelopt", "fp8", "fbgemm_fp8"),
        *("mxfp4", "mxfp8", "experts_int8", "quark", "torchao"),
    }
    assert [outcome for outcome in sized if not outcome.agrees] == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_listed_models_are_those_of_transformers(model: SmallModel) -> None:
    listed, built = check_against_transformers(model)
    assert listed == built


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("qwen3-30b-a3b-fp8", "gemma-4-26b-a4b-nvfp4", "qwen3.6-35b-a3b-nvfp4", "nemotron-3-nano-30b-a3b-nvfp4"),
        *("gpt-oss-20b", "llama-3.3-70b-instruct-fp8-dynamic", "kimi-k2.5", "glm-5.1-nvfp4"),
    ],
)
def test_a_profile_is_sized_as_vllm_builds_it(name: str) -> None:
    """``--profiles`` counts the other ones."""
    outcome = check_profile(name)
    assert outcome.planned == outcome.counted
