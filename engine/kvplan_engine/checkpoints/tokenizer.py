"""A model's tokenizer, by transformers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from kvplan_engine.checkpoints.converted_tokenizer import converted
from kvplan_engine.checkpoints.gguf_header import read_gguf
from kvplan_engine.errors import EngineError
from kvplan_engine.files import check_files, read_json_object

_HINT = "give prompts as {'prompt_token_ids': [...]}"
# Classes without a model of their own: all that they are is in tokenizer.json.
_GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")
# What AutoTokenizer looks at to choose a class.
_FIELDS = ("model_type", "model_name", "tokenizer_class")
_FILES = (
    *("config.json", "generation_config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template*", "*.model"),
)
"""What transformers reads beside a tokenizer."""


def has_tokenizer(path: Path | None) -> bool:
    """Whether a .gguf file, or a directory, holds one. EngineError where a file is damaged."""
    if path is None:
        return False
    if path.suffix == ".gguf":
        return _file_has_tokenizer(path)
    return (path / "tokenizer_config.json").is_file()


@cache  # asked for every answer
def _file_has_tokenizer(path: Path) -> bool:
    return read_gguf(path).metadata.get("tokenizer.ggml.model", "none") not in ("none", "no_vocab")


def load_tokenizer(path: Path | None) -> Any:
    """From a .gguf file, a directory, or a file in one. EngineError where there is none."""
    if path is None:
        raise EngineError("this model has no tokenizer.", hint=_HINT)
    try:
        check_files(path if path.is_dir() else path.parent, _FILES)
        return converted(path, _of_folder) if path.suffix == ".gguf" else _of_folder(path)
    except Exception as problem:  # three libraries read what others wrote, and raise what they like
        said = next(iter(str(problem).strip().splitlines()), "") or type(problem).__name__
        raise EngineError(f"no tokenizer could be loaded from {path}: {said[:300]}", hint=_HINT) from problem


def _of_folder(path: Path) -> Any:
    from transformers import AutoTokenizer

    folder = path if path.is_dir() else path.parent
    return AutoTokenizer.from_pretrained(str(folder), **_known_config(folder))


def _known_config(folder: Path) -> dict[str, Any]:
    """The config, where AutoTokenizer needs no more of it than a few names.

    To read it itself it would import the model's class and with it torch's compiler, which takes seconds.
    """
    config, own = (_read(folder / name) for name in ("config.json", "tokenizer_config.json"))
    if own.get("tokenizer_class") not in _GENERIC or "auto_map" in own or "auto_map" in config:
        return {}
    from transformers import PretrainedConfig

    names = {name: config[name] for name in _FIELDS if name in config}
    return {"config": PretrainedConfig.from_dict({**names, "_name_or_path": str(folder)})}


def _read(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.exists() else {}
