"""Models with experts answer as transformers' classes do: greedy tokens and their log-probabilities, in float32."""

from __future__ import annotations

from pathlib import Path

import equality_checks
import pytest
from mixture_models import CONFIGS, MixtureCheckpoint


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MixtureCheckpoint:
    return MixtureCheckpoint(request.param, tmp_path_factory.mktemp("mixtures"))


def test_answers_of_ragged_batches(checkpoint: MixtureCheckpoint) -> None:
    equality_checks.check_ragged_batches(checkpoint)


def test_preemption_and_other_blocks(checkpoint: MixtureCheckpoint) -> None:
    equality_checks.check_preemption_and_other_blocks(checkpoint)


def test_log_probabilities(checkpoint: MixtureCheckpoint) -> None:
    equality_checks.check_log_probabilities(checkpoint)


@pytest.mark.parametrize("name", ["qwen2_moe", "glm4_moe", "phimoe"])
def test_the_definition_answers_alike(name: str, tmp_path: Path) -> None:
    equality_checks.check_definition(MixtureCheckpoint(name, tmp_path))
