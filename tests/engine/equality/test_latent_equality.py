"""Models with latent attention answer as transformers' classes do: greedy tokens and log-probabilities, in float32."""

from __future__ import annotations

from pathlib import Path

import equality_checks
import pytest
from latent_models import CONFIGS, LatentCheckpoint


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LatentCheckpoint:
    return LatentCheckpoint(request.param, tmp_path_factory.mktemp("latent"))


def test_answers_of_ragged_batches(checkpoint: LatentCheckpoint) -> None:
    equality_checks.check_ragged_batches(checkpoint)


def test_preemption_and_other_blocks(checkpoint: LatentCheckpoint) -> None:
    equality_checks.check_preemption_and_other_blocks(checkpoint)


def test_log_probabilities(checkpoint: LatentCheckpoint) -> None:
    equality_checks.check_log_probabilities(checkpoint)


@pytest.mark.parametrize("name", ["deepseek_v2_lite", "mistral4", "glm_moe_dsa"])
def test_the_definition_answers_alike(name: str, tmp_path: Path) -> None:
    equality_checks.check_definition(LatentCheckpoint(name, tmp_path))
