"""A model's tokenizer, by transformers."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvplan_engine.checkpoints.gguf_header import read_gguf
from kvplan_engine.errors import EngineError
from kvplan_engine.files import check_files, read_json_object
from kvplan_engine.paths import tokenizer_cache_dir

# A .gguf file's tokenizer, converted once: transformers takes seconds to make one from a file's header at each start.
#
# What it makes lies in the user's cache under a digest of all that it is made of: the header, the versions of the
# libraries, and files beside it that transformers would read too. Only what reads back equal is kept.


def converted(path: Path, load_folder: Callable[[Path], Any]) -> Any:
    """The tokenizer of the .gguf file at ``path``. load_folder: reads one that transformers saved in a folder.

    Raises what transformers raises for a file that it cannot convert, and EngineError for a damaged one.
    """
    folder = tokenizer_cache_dir() / _key(path)
    kept = _kept(folder, load_folder)
    if kept is not None:
        return kept
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    _keep(tokenizer, folder, load_folder)
    return tokenizer


_BESIDE = (".json", ".jinja", ".model", ".txt")


def _key(path: Path) -> str:
    file = read_gguf(path)
    first = min((tensor.first_byte for tensor in file.tensors.values()), default=len(file.data))
    digest = hashlib.sha256(file.data[:first].data)
    versions = [version(name) for name in ("transformers", "tokenizers")]
    beside = [(each.name, each.stat()) for each in sorted(path.parent.iterdir()) if each.suffix in _BESIDE]
    digest.update(repr((versions, [(name, stat.st_size, stat.st_mtime_ns) for name, stat in beside])).encode())
    return digest.hexdigest()[:32]


def _kept(folder: Path, load_folder: Callable[[Path], Any]) -> Any:
    """What lies in the cache; None where nothing does, or what cannot be read any more, which is removed."""
    if not folder.is_dir():
        return None
    try:
        return load_folder(folder)
    except (OSError, ValueError, KeyError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _keep(tokenizer: Any, folder: Path, load_folder: Callable[[Path], Any]) -> None:
    """Save ``tokenizer`` in ``folder``, all at once, if it reads back equal. A cache that cannot be written is none."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        written = Path(tempfile.mkdtemp(dir=folder.parent))
    except OSError:
        return
    try:
        tokenizer.save_pretrained(str(written))
        if _identity(load_folder(written)) == _identity(tokenizer):
            written.rename(folder)
    except (OSError, ValueError, KeyError):  # full, written by another process meanwhile, or not to be read back
        pass
    finally:
        shutil.rmtree(written, ignore_errors=True)


def _identity(tokenizer: Any) -> tuple[Any, ...]:
    """All that an answer's text can depend on."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return (
        type(tokenizer),
        None if backend is None else backend.to_str(),
        tokenizer.chat_template,
        {role: str(token) for role, token in tokenizer.special_tokens_map.items()},
        getattr(tokenizer, "clean_up_tokenization_spaces", None),
        tokenizer.padding_side,
        tokenizer.model_max_length,
    )


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
