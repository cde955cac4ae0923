"""Fixtures of the server's tests: a small random model with a tokenizer, and a server that most tests share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess
from small_models import VOCAB_SIZE, Checkpoint
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from kvplan_engine import LLM

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('roles are system, user and assistant') }}{% endif %}"
    "{{ bos_token + message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token + 'assistant: ' }}{% endif %}"
)
_TEXT = "the capital of France is Paris and the paged cache holds the keys and values of every token, block by block. "


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with as many tokens as the model has; its tokens are also parts of characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT * 3, "äöü 日本語 🙂 " * 3], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|start|>", chat_template=CHAT_TEMPLATE
    )


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small random model, with a tokenizer and a chat template."""
    checkpoint = Checkpoint("llama-tied", tmp_path_factory.mktemp("served"))
    _tokenizer().save_pretrained(checkpoint.path)
    return checkpoint.path


@pytest.fixture(scope="session")
def long_model_path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with a longer context, for requests that run until a test is done with them."""
    path = tmp_path_factory.mktemp("served") / "long"
    shutil.copytree(model_path, path)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def llm(model_path: Path) -> Iterator[LLM]:
    """The same model without a server."""
    with LLM(str(model_path), device="cpu", device_memory="256MiB", max_num_seqs=64, dtype="float32") as llm:
        yield llm


@pytest.fixture(scope="session")
def server(model_path: Path) -> Iterator[ServerProcess]:
    """Nothing set but the model's names; tests leave it idle."""
    with ServerProcess(str(model_path), served_model_names=["small", "org/small"]) as server:
        yield server
        assert server.end() == 0, "".join(server.lines)
