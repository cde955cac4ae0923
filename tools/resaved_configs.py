"""Shipped configs as transformers writes them again: each is loaded, saved and sized a second time.

    python tools/resaved_configs.py [NAME ...]

Fine-tunes, quantizers and exports save a config with ``save_pretrained``, which renames keys and moves them. Prints one
line for each profile whose sizes change, or that is refused, and ends with the counts. Exit code 1 where one is wrong.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from kvplan.catalog.models import profiles  # noqa: E402
from kvplan.catalog.reader import read_config  # noqa: E402
from kvplan.catalog.spec import ModelSpec  # noqa: E402
from kvplan.errors import KvplanError  # noqa: E402
from kvplan.estimate.weights import size_weights  # noqa: E402


@dataclass(frozen=True, slots=True)
class Resaved:
    """What became of one config. ``change``: what is sized otherwise, or why it is refused; "" where nothing is."""

    name: str
    change: str
    is_loadable: bool = True


def saved_by_transformers(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config as ``AutoConfig`` saves it again; None where it does not load without a checkpoint's code."""
    import transformers

    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "config.json"
        own = {key: value for key, value in config.items() if key != "auto_map"}
        path.write_text(json.dumps(own), encoding="utf-8")
        try:
            loaded = transformers.AutoConfig.from_pretrained(folder)
        except (KeyError, ValueError, TypeError, AttributeError):
            return None
        loaded.save_pretrained(folder)
        written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return written


def sizes(spec: ModelSpec) -> dict[str, object]:
    """What a plan rests on, by a word for each.

    Towers are left out: of a section that the published config does not have, transformers writes its class's defaults.
    """
    weights = size_weights(spec, spec.dtype)
    cache = None if spec.quantization is None else spec.quantization.kv_cache_dtype
    return {
        "architecture": spec.architecture,
        "parameters": spec.num_parameters,
        "active parameters": spec.num_active_parameters,
        "longest context": spec.longest_context,
        "mixers": [layer.mixer for layer in spec.layers],
        "feed-forwards": [layer.feed_forward for layer in spec.layers],
        "tensors": spec.tensors,
        "dtype": spec.dtype,
        "tied": spec.tie_word_embeddings,
        "weight bytes": weights.total_bytes,
        "KV cache": cache,
        "multi-token layers": [each for each in spec.extras if each.kind == "multi_token_prediction"],
    }


def changes(config: Mapping[str, Any], written: Mapping[str, Any]) -> str:
    """What is sized otherwise of ``written`` than of ``config``, or why it is refused; "" where nothing is."""
    before = sizes(read_config(config, model_id="published"))
    try:
        after = sizes(read_config(written, model_id="resaved"))
    except KvplanError as error:
        return f"refused: {error.message}"
    return "; ".join(
        f"{word}: {_short(before[word])} -> {_short(after[word])}" for word in before if before[word] != after[word]
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def resaved(names: list[str]) -> Iterator[Resaved]:
    """One for every shipped profile, or for those whose name has one of ``names`` in it."""
    for profile in profiles():
        if names and not any(part in profile["name"] for part in names):
            continue
        written = saved_by_transformers(profile["config"])
        if written is None:
            yield Resaved(profile["name"], "", is_loadable=False)
        else:
            yield Resaved(profile["name"], changes(profile["config"], written))


def main(names: list[str]) -> int:
    found = []
    for each in resaved(names):
        found.append(each)
        if each.change:
            print(f"{each.name:44s} {each.change}", flush=True)
    wrong = [each for each in found if each.change]
    unread = [each.name for each in found if not each.is_loadable]
    same = len(found) - len(wrong) - len(unread)
    print(f"{len(found)} profiles: {same} the same, {len(wrong)} not; transformers loads no {', '.join(unread)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
