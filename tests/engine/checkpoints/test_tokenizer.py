"""Tokenizers are those that AutoTokenizer finds, also where it is spared the model's config."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from kvplan_engine.checkpoints.tokenizer import has_tokenizer, load_tokenizer
from kvplan_engine.errors import EngineError

TEXT = "the paged cache holds keys and values, block by block; äöü 日本語 <|start|>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A llama's config and a byte-level tokenizer with special tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>", "<|start|>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([TEXT * 3], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", bos_token="<|start|>", chat_template="{{ messages }}"
    )
    tokenizer.save_pretrained(tmp_path)
    LlamaConfig(vocab_size=300).save_pretrained(tmp_path)
    return tmp_path


def declare(folder: Path, name: str | None) -> None:
    path = folder / "tokenizer_config.json"
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**fields, "tokenizer_class": name}), encoding="utf-8")


@pytest.mark.parametrize("name", ["TokenizersBackend", "PreTrainedTokenizerFast", "GPT2Tokenizer", None])
def test_it_is_the_one_that_transformers_finds(folder: Path, name: str | None) -> None:
    declare(folder, name)
    own, expected = load_tokenizer(folder), AutoTokenizer.from_pretrained(str(folder))
    assert type(own) is type(expected)
    assert own.encode(TEXT) == expected.encode(TEXT)
    assert own.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
    assert own.special_tokens_map == expected.special_tokens_map
    assert own.chat_template == expected.chat_template


@pytest.mark.parametrize("name", ["TokenizersBackend", "PreTrainedTokenizerFast"])
def test_the_models_class_is_not_imported_for_it(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the config was read")

    monkeypatch.setattr(AutoConfig, "from_pretrained", refuse)
    declare(folder, name)
    assert load_tokenizer(folder).decode(load_tokenizer(folder).encode("the cache")) == "the cache"


@pytest.fixture
def gguf_file(folder: Path) -> Path:
    """The same vocabulary as llama.cpp's converter writes it."""
    backend = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = sorted(backend["model"]["vocab"], key=backend["model"]["vocab"].__getitem__)
    path = folder / "alone" / "vocabulary.gguf"
    path.parent.mkdir()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in ("<|end|>", "<|start|>") else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in backend["model"]["merges"]])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_chat_template("{{ messages }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_files_tokenizer_is_converted_once(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    expected = AutoTokenizer.from_pretrained(str(gguf_file.parent), gguf_file=gguf_file.name)
    converted = load_tokenizer(gguf_file)
    (kept,) = (tmp_path / "cache" / "tokenizers").iterdir()
    whole, calls = AutoTokenizer.from_pretrained, []

    def seen(*words: Any, **options: Any) -> Any:
        calls.append(options.get("gguf_file"))
        return whole(*words, **options)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", seen)
    again = load_tokenizer(gguf_file)
    assert calls == [None]
    for own in (converted, again):
        assert type(own) is type(expected)
        assert own.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
        assert (own.special_tokens_map, own.chat_template) == (expected.special_tokens_map, expected.chat_template)
        assert own.decode(own.encode(TEXT)) == expected.decode(expected.encode(TEXT))
    (kept / "tokenizer.json").write_text("{", encoding="utf-8")
    assert load_tokenizer(gguf_file).encode(TEXT) == expected.encode(TEXT)
    assert calls[-2:] == [gguf_file.name, None]  # converted anew, and read back


def test_what_it_is_made_of_decides_which_is_taken(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    assert load_tokenizer(gguf_file).chat_template == "{{ messages }}"
    gguf_file.write_bytes(gguf_file.read_bytes().replace(b"{{ messages }}", b"{{ messages}} "))
    assert load_tokenizer(gguf_file).chat_template == "{{ messages}} "
    for name in ("tokenizer.json", "tokenizer_config.json"):  # which transformers prefers, where they are
        shutil.copy(tmp_path / name, gguf_file.parent)
    expected = AutoTokenizer.from_pretrained(str(gguf_file.parent), gguf_file=gguf_file.name)
    assert expected.chat_template != "{{ messages}} "
    assert load_tokenizer(gguf_file).chat_template == expected.chat_template


def test_a_cache_that_cannot_be_written_is_none(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "blocker"
    blocker.write_text("", encoding="utf-8")
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(blocker))
    assert load_tokenizer(gguf_file).encode("the cache")


def test_what_is_no_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="this model has no tokenizer"):
        load_tokenizer(None)
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(EngineError, match="no tokenizer could be loaded from") as caught:
        load_tokenizer(tmp_path)
    assert caught.value.hint == "give prompts as {'prompt_token_ids': [...]}"


@pytest.mark.parametrize(("declared", "want"), [(None, False), ("none", False), ("llama", True)])
def test_a_gguf_file_need_not_hold_one(tmp_path: Path, declared: str | None, want: bool) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    if declared is not None:
        writer.add_tokenizer_model(declared)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert has_tokenizer(path) is want


def test_a_folder_has_one_where_it_is_described(folder: Path) -> None:
    assert has_tokenizer(folder)
    (folder / "tokenizer_config.json").unlink()
    assert not has_tokenizer(folder)
    assert not has_tokenizer(None)


@pytest.mark.parametrize("merges", [["q z"], ["one"], ["a b c"], [""]], ids=["lacking", "one", "three", "empty"])
def test_merges_that_do_not_fit_the_vocabulary_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merges: list[str]
) -> None:
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_merges(merges)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(EngineError, match="no tokenizer could be loaded from"):
        load_tokenizer(path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_pipe_in_the_folder_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(EngineError, match=f"{name} is not a regular file"):
        load_tokenizer(folder)
