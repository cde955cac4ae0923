"""A .gguf file's tokenizer, converted once: transformers takes seconds to make one from a file's header at each start.

What it makes lies in the user's cache under a digest of all that it is made of: the header, the versions of the
libraries, and files beside it that transformers would read too. Only what reads back equal is kept.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvplan_engine.checkpoints.gguf_header import read_gguf
from kvplan_engine.paths import tokenizer_cache_dir


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
