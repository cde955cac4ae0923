"""``--engine-arg`` that is a setting of ours: taken as that setting, so that plan, row and command name what is served.

Names are the engines' own: vLLM's and SGLang's (``kvplan.pasted``), TensorRT-LLM's and llama.cpp's here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvplan.engines.interface import argument_pairs
from kvplan.errors import UsageError
from kvplan.estimate.llamacpp import PADDING
from kvplan.pasted.command import read_command
from kvplan.pasted.options import SETTING_OF, setting_value
from kvplan.settings import option_of
from kvplan.sweeps.axes import AXES, parse_values
from kvplan.units import LARGEST

_FLAGS: Final[Mapping[str, str]] = {"enable-expert-parallel": "enable_expert_parallel"}
_VLLM: Final = frozenset(AXES) - {"group_size"}
_SGLANG: Final = frozenset(
    {"gpu_memory_utilization", "max_num_seqs", "max_model_len", "max_num_batched_tokens", "dtype", "kv_cache_dtype"}
)
_TRTLLM: Final[Mapping[str, str]] = {
    "max-batch-size": "max_num_seqs",
    "max-num-tokens": "max_num_batched_tokens",
    "max-seq-len": "max_model_len",
}
_LLAMACPP: Final[Mapping[str, str]] = {
    "parallel": "max_num_seqs",
    "np": "max_num_seqs",
    "batch-size": "max_num_batched_tokens",
    "b": "max_num_batched_tokens",
}


def _named(settings: frozenset[str]) -> dict[str, str]:
    return {option: name for option, name in SETTING_OF.items() if name in settings}


_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {**_named(_VLLM), **_FLAGS},
    "sglang": _named(_SGLANG),
    "trtllm": _TRTLLM,
    "llamacpp": _LLAMACPP,
}
"""Engine -> its option -> the setting that it is."""


@dataclass(frozen=True, slots=True)
class SettledArguments:
    """axes: with the settings that arguments gave. arguments: those that are the engine's own."""

    axes: Mapping[str, str]
    arguments: tuple[str, ...]


def settle_arguments(engine: str, arguments: Sequence[str], axes: Mapping[str, str]) -> SettledArguments:
    """``arguments`` of a sweep of ``engine``, and its axes.

    UsageError where one contradicts an axis, or is no value of its setting.
    """
    known = _SETTINGS.get(engine, {})
    found, left = dict(axes), []
    for argument in arguments:
        ((option, value),) = argument_pairs([argument]).items()
        name = known.get(option)
        if name is None or (not value and name not in _FLAGS.values()):
            left.append(argument)
            continue
        text = _axis_text(name, option, value)
        if name in found and parse_values(AXES[name], found[name]) != parse_values(AXES[name], text):
            raise UsageError(
                f"--engine-arg {argument} contradicts {option_of(name)} {found[name]}.", hint="leave one of them out"
            )
        found[name] = text
    if engine == "llamacpp":
        return _with_slot_lengths(found, left)
    return SettledArguments(found, tuple(left))


def _with_slot_lengths(axes: dict[str, str], arguments: list[str]) -> SettledArguments:
    """llama.cpp's ``ctx-size`` as ``max_model_len``: it is shared by the slots, whose lengths are whole paddings.

    It stays an argument, which the prediction reads, where there are several numbers of slots, where these share their
    cells, and where the length would be another. UsageError where it contradicts ``max_model_len``.
    """
    given = argument_pairs(arguments)
    option = next((name for name in ("ctx-size", "c") if name in given), None)
    slots = parse_values(AXES["max_num_seqs"], axes["max_num_seqs"]) if "max_num_seqs" in axes else ()
    is_shared = "kv-unified" in given or "kvu" in given or "kv_cache_memory_bytes" in axes
    if option is None or is_shared or len(slots) != 1 or not given[option].isdecimal():
        return SettledArguments(axes, tuple(arguments))
    tokens, number = int(given[option]), int(slots[0])
    if not tokens or tokens % (number * PADDING):
        return SettledArguments(axes, tuple(arguments))
    text = str(tokens // number)
    asked = axes.get("max_model_len")
    if asked is not None and parse_values(AXES["max_model_len"], asked) != parse_values(AXES["max_model_len"], text):
        raise UsageError(
            f"--engine-arg {option}={tokens} is {text} tokens for each of {number} slots, and --max-model-len is "
            f"{asked}.",
            hint="leave one of them out",
        )
    left = [each for each in arguments if option not in argument_pairs([each])]
    return SettledArguments({**axes, "max_model_len": text}, tuple(left))


def _axis_text(name: str, option: str, value: str) -> str:
    """The value as the axis takes it; a flag that stands alone is on."""
    if name in _FLAGS.values():
        return value.lower() or "true"
    try:
        read = setting_value(name, value)
    except (ValueError, OverflowError):
        raise UsageError(
            f"--engine-arg {option}={value} is no value of {name}.", hint=f"see {option_of(name)}"
        ) from None
    assert not isinstance(read, int) or read <= LARGEST, "setting_value checks the range"
    return value if read is None else str(read)


def given_settings(arguments: Sequence[str]) -> dict[str, Any]:
    """What vLLM's arguments say of settings that no sweep varies, such as ``enforce_eager`` or ``cpu_offload_gb``.

    What is no option of vLLM's, or no value of one, is vLLM's to refuse.
    """
    found: dict[str, Any] = {}
    for argument in arguments:
        ((option, value),) = argument_pairs([argument]).items()
        words = (f"--{option}", value) if value else (f"--{option}",)
        try:
            read = read_command(("vllm", "serve", "model", *words)).settings
        except UsageError:
            continue
        found |= {name: each for name, each in read.items() if name not in AXES}
    return found
