"""From the lists on the command line to one question per model, format and context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from kvplan.catalog.devices.gpus import parse_gpu_count
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.question import Question
from kvplan.estimate.weights import NAMED_FORMATS, check_group_size
from kvplan.list_words import is_value
from kvplan.settings import KNOBS, ServingSettings, own_group_size
from kvplan.units import parse_tokens


@dataclass(frozen=True, slots=True)
class Lists:
    """What options that take several values say, split at commas; empty where the option was not given."""

    contexts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    kv_cache_dtypes: tuple[str, ...] = ()


def is_quantization(text: str) -> bool:
    """Whether ``text`` is a value of --quantization."""
    return text.casefold() in ("auto", "none", *NAMED_FORMATS)


LIST_OPTIONS: dict[str, Callable[[str], object]] = {
    "--ctx": parse_tokens,
    "--max-model-len": parse_tokens,
    "--gpu": parse_gpu_count,
    "--quantization": is_quantization,
    "--kv-cache-dtype": KNOBS["kv_cache_dtype"].canonical_name,
}
"""Options whose further values may follow after spaces, and what reads one of them (kvplan.list_words)."""


def resolve_models(words: Sequence[str], assumptions: Mapping[str, str], *, after_gpus: bool) -> list[ModelSpec]:
    """The models that ``words`` name. A further word that is none may have been meant for --gpu (``after_gpus``)."""
    for word in words[1:]:
        if is_value(word, parse_gpu_count):
            raise UsageError(f"'{word}' is a GPU, not a model.", hint=f"say --gpu {word}")
    found = []
    for position, word in enumerate(words):
        try:
            found.append(resolve_model(word, assumptions=assumptions))
        except UsageError as error:
            if position and after_gpus:
                hint = f"{error.hint}; `kvplan gpus` lists the GPUs"
                raise UsageError(f"'{word}' is neither a model nor a GPU.", hint=hint) from error
            raise
    return found


def with_pasted_lists(given: Lists, pasted: Mapping[str, Any]) -> Lists:
    """``given``, with what a pasted command says in the place of lists that were not given."""
    named = {"contexts": "max_model_len", "quantizations": "quantization", "kv_cache_dtypes": "kv_cache_dtype"}
    said = {
        field: (str(pasted[name]),) for field, name in named.items() if name in pasted and not getattr(given, field)
    }
    return replace(given, **said)


def questions(lists: Lists, settings: ServingSettings) -> tuple[Question, ...]:
    """Every combination that ``lists`` asks for, contexts changing first."""
    contexts: list[int | None] = [parse_tokens(text) for text in lists.contexts]
    weights = [KNOBS["quantization"].canonical_name(text) for text in lists.quantizations] or ["auto"]
    check_group_size(weights, settings.group_size)
    caches = [KNOBS["kv_cache_dtype"].canonical_name(text) for text in lists.kv_cache_dtypes] or ["auto"]
    return tuple(
        Question(context, replace(_with_weights(settings, weight), kv_cache_dtype=cache))
        for weight, cache, context in product(weights, caches, contexts or [None])
    )


def _with_weights(settings: ServingSettings, name: str) -> ServingSettings:
    """Formats without groups have no group's size, where others of the list have one."""
    return replace(settings, quantization=name, group_size=own_group_size(name, settings.group_size))
