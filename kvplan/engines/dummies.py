"""A model directory without weights, for engines that make up random ones: its config, and a tokenizer of its size.

Prompts are token ids and what is generated is only counted, so the tokenizer's words mean nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

from kvplan.catalog.spec import ModelSpec
from kvplan.runs.directory import MODEL
from kvplan.runs.storage.files import write_whole


def write_dummy_model(spec: ModelSpec, directory: Path) -> Path:
    """Write it into a run directory, and say where."""
    folder = (directory / MODEL).resolve()
    folder.mkdir(exist_ok=True)
    write_whole(folder / "config.json", json.dumps(dict(spec.raw_config), indent=2) + "\n")
    write_whole(folder / "tokenizer.json", json.dumps(_word_tokenizer(spec.vocab_size)) + "\n")
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t0"}
    write_whole(folder / "tokenizer_config.json", json.dumps(kind) + "\n")
    return folder


def _word_tokenizer(vocab_size: int) -> dict[str, object]:
    """A word for each token: ``t0 t1 t2``."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"t{number}": number for number in range(vocab_size)},
            "unk_token": "t0",
        },
    }
