"""A pasted ``vllm serve ...`` in the place of a model and options: what it says counts where nothing else is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.speculation.config import with_speculative_config
from kvplan.errors import UsageError
from kvplan.pasted.shell import is_serve_line, shell_words
from kvplan.settings import KNOBS, ServingSettings

if TYPE_CHECKING:
    from kvplan.pasted.command import PastedCommand


def pasted_command(words: Sequence[str]) -> PastedCommand | None:
    """The command that ``words`` are, or the one of them that holds a whole line; None where they name models."""
    lines = [shell_words(word) if " " in word.strip() else [word] for word in words]
    whole = next((line for line in lines if len(line) > 1 and is_serve_line(line)), None)
    if whole is None and not is_serve_line(words):
        return None
    from kvplan.pasted.command import read_command  # what reads commands is much, and few paste any

    return read_command(words if whole is None else whole)


def with_pasted(given: ServingSettings, pasted: PastedCommand, speculative_config: str | None) -> ServingSettings:
    """``pasted`` with what was ``given`` beside it, which counts before it."""
    changed = {name: value for name in KNOBS if (value := getattr(given, name)) != KNOBS[name].default}
    both = replace(ServingSettings(), **pasted.settings)
    both = replace(with_speculative_config(both, speculative_config or pasted.speculative_config), **changed)
    both.check(as_options=True)
    return both


def engine_of(given: str | None, pasted: PastedCommand, default: str) -> str:
    """The engine that is asked for, or the release of the command's container. UsageError for another engine."""
    if given is not None and EngineChoice.parse(given).name != "vllm":
        raise UsageError(f"--engine {given} cannot be used with vLLM's command.", hint="leave --engine out")
    return given or (default if pasted.version is None else f"vllm@{pasted.version}")


def checkpoint_note(spec: ModelSpec, pasted: PastedCommand) -> str | None:
    """A sentence where the command names a format of the checkpoint, and the model has none."""
    if pasted.checkpoint_format is None or spec.quantization is not None:
        return None
    return (
        f"--quantization {pasted.checkpoint_format} needs weights in that format; {spec.served_id} is sized as "
        f"published, in {spec.dtype}."
    )
