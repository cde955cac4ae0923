"""Fixtures of the engine's tests: checkpoints of small random models, and the trained SmolLM2."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
import torch
import transformers
from engine_answers import NUM_TOKENS, PROMPT_LENGTHS, ragged_prompts
from small_models import ARCHITECTURES, OTHER_KINDS, Checkpoint, greedy

from kvplan_engine import Engine
from kvplan_engine.requests.outputs import StepOutput

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# Models this small run faster on one thread, and much faster so where other processes take the cores.
torch.set_num_threads(1)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The test begins on one thread: on a busy machine helpers that wait for a core cost more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def every_step_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test does with an engine, all invariants of scheduler and pool hold after each of its steps."""
    step = Engine.step

    def checked_step(self: Engine) -> list[StepOutput]:
        outputs = step(self)
        self.check()
        return outputs

    monkeypatch.setattr(Engine, "step", checked_step)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: Checkpoint(name, folder) for name in (*ARCHITECTURES, *OTHER_KINDS)}


@pytest.fixture(scope="session")
def smollm2_path(smollm2_file: Path) -> Iterator[Path]:
    """Its header is parsed once: model and tokenizer of both the engine and transformers would each take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, functools.cache(getattr(gguf, name)))
        yield smollm2_file


@pytest.fixture(scope="session")
def smollm2_model(smollm2_path: Path) -> torch.nn.Module:
    """The same weights in transformers, float32."""
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    )
    return model.eval()


@pytest.fixture(scope="session")
def expected_tokens(checkpoints: dict[str, Checkpoint]) -> dict[str, list[list[int]]]:
    """By architecture, transformers' greedy answers to ``ragged_prompts``."""
    answers = {}
    for name in ARCHITECTURES:
        answers[name] = greedy(checkpoints[name].model, ragged_prompts(), NUM_TOKENS)
        assert len({tuple(answer) for answer in answers[name]}) == len(PROMPT_LENGTHS), "answers that cannot tell"
    return answers
