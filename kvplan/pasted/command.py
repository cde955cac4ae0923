"""One pasted command that starts vLLM's server, read strictly: every option is one of vLLM's, every value is checked.

Options are read as vLLM's parser does (vllm/utils/argparse_utils.py): underscores for hyphens, ``--option=value``,
``-tp 2``, ``--no-flag``, and keys of a JSON option behind a dot (``--speculative-config.num_speculative_tokens 3``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from kvplan.errors import UsageError
from kvplan.pasted.options import FLAGS, NO, SETTING_OF, setting_value, vllm_options
from kvplan.pasted.shell import serve_line, shell_words
from kvplan.settings import KNOBS, MADE_WHILE_LOADING, option_of

_JSON: Final = ("speculative-config", "limit-mm-per-prompt")
"""Options with an object that is read here."""
_POOLING: Final = {
    "runner": ("pooling",),
    "convert": ("embed", "classify", "reward", "token_embed", "token_classify", "score"),
    "task": ("embed", "embedding", "classify", "reward", "score"),
}
_UNREAD: Final = {
    "config": "put the options of that file on the command line",
    "headless": "paste the command of the first node, which serves",
}
"""Options without which a command says nothing that could be sized, with what to do instead."""
_LATER: Final = ("auto", "-1")
"""Of ``--max-model-len``: as long as fits, which an answer names where the model's own length does not."""
_FORMATS_MADE: Final = frozenset({*MADE_WHILE_LOADING, "online", "mxfp8", "experts_int8"})
_SHORTHANDS: Final = re.compile(r"(?:fp8|int8|nvfp4)_per_\w{1,40}")
"""vLLM's formats that are made while loading (vllm/config/quantization.py: _ONLINE_SHORTHANDS); others are loaded."""
_LAYERS_OF_STAGES: Final = "VLLM_PP_LAYER_PARTITION"
_GRAPHS_COUNTED: Final = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"


@dataclass(frozen=True, slots=True)
class PastedCommand:
    """What a command says of a deployment. ``settings``: fields of ServingSettings, those alone that it names.

    version: of vLLM, by the image's tag. checkpoint_format: a format that the weights must have already, as
    ``--quantization awq`` says. ignored: options that change neither memory nor speed. unmodelled: those that may.
    shortens: the option by which vLLM takes the longest sequences that fit, where those of the model do not.
    """

    model: str
    settings: dict[str, Any]
    speculative_config: str | None = None
    version: str | None = None
    checkpoint_format: str | None = None
    ignored: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()
    shortens: str | None = None

    @property
    def notes(self) -> list[str]:
        """What of the command is not in the answer."""
        said = {
            "Options that change neither memory nor speed": self.ignored,
            "Not modelled, though they may change the figures": self.unmodelled,
        }
        notes = [f"{what}: {', '.join(options)}." for what, options in said.items() if options]
        if self.shortens is not None:
            notes.append(
                f"{self.shortens}: where the model's own length does not fit, vLLM starts with the longest that does. "
                "The limit of an estimate names it, and --ctx takes it."
            )
        return notes


def read_command(command: str | Sequence[str]) -> PastedCommand:
    """Read one command, a text or its words. UsageError for what does not start vLLM, or for an option that is none."""
    line = serve_line(shell_words(command) if isinstance(command, str) else command)
    found = _CommandReading()
    for name, value in line.variables.items():
        found.take_variable(name, value)
    words = list(line.arguments)
    while words:
        found.take(words)
    if found.model is None:
        raise UsageError("The pasted command names no model.", hint="write it behind `vllm serve`, or as --model ID")
    return PastedCommand(
        found.model,
        found.settings,
        json.dumps(found.objects["speculative-config"]) if "speculative-config" in found.objects else None,
        line.version,
        found.checkpoint_format,
        tuple(dict.fromkeys(found.ignored)),
        tuple(dict.fromkeys(found.unmodelled)),
        found.shortens,
    )


@dataclass(slots=True)
class _CommandReading:
    """A command as far as it is read."""

    model: str | None = None
    is_positional: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    checkpoint_format: str | None = None
    ignored: list[str] = field(default_factory=list)
    unmodelled: list[str] = field(default_factory=list)
    shortens: str | None = None

    def take(self, words: list[str]) -> None:
        """Take the next option with its values off ``words``, or the model."""
        word = words.pop(0)
        if not word.startswith("-") or word == "-":
            self._take_model(word)
            return
        written, equals, value = word.partition("=")
        if re.fullmatch(r"-O\S*", word):
            # ``-O3``, ``-O 3`` and ``-O.mode=3`` say how much is compiled.
            if word == "-O" and words and not _is_option(words[0]):
                words.pop(0)
            self.unmodelled.append(word.partition("=")[0].partition(".")[0])
            return
        name, dot, key = self._long_name(written).partition(".")
        kind = vllm_options().kinds.get(name)
        if kind is None and name.startswith("no-") and vllm_options().kinds.get(name[3:]) == "flag":
            self._take_flag(name[3:], written, is_on=False)
        elif kind is None:
            raise _unknown(written, name)
        elif kind == "flag" and not dot:
            if not equals and words and words[0].lower() in ("true", "false"):
                value = words.pop(0)
            self._take_flag(name, written, is_on=value.lower() not in NO)
        else:
            values = [value] if equals else self._values(written, words, is_list=kind == "list")
            self._take_value(name, written, values[0], key)

    def _long_name(self, written: str) -> str:
        """Return the option's name as vLLM's documentation has it; keys behind a dot stay as they are."""
        if written.startswith("--"):
            name, dot, key = written[2:].partition(".")
            return name.replace("_", "-") + dot + key
        short, dot, key = written[1:].partition(".")
        if short not in vllm_options().short:
            raise _unknown(written, short)
        return vllm_options().short[short] + dot + key

    def _values(self, written: str, words: list[str], *, is_list: bool) -> list[str]:
        found: list[str] = []
        while words and (is_list or not found) and not _is_option(words[0]):
            found.append(words.pop(0))
        if not found:
            raise UsageError(f"{written} of the pasted command has no value.", hint=f"write {written} VALUE")
        return found

    def _take_model(self, word: str) -> None:
        if self.is_positional:
            raise UsageError(
                f"The pasted command names two models, {self.model} and {word}.", hint="put values of options in quotes"
            )
        self.model, self.is_positional = word, True

    def _take_flag(self, name: str, written: str, *, is_on: bool) -> None:
        if name in _UNREAD:
            raise _unread(written, name)
        if name not in FLAGS:
            self._leave(name, written)
            return
        setting, on = FLAGS[name]
        self.settings[setting] = is_on is on

    def _take_value(self, name: str, written: str, value: str, key: str) -> None:
        if name in _UNREAD:
            raise _unread(written, name)
        if value in _POOLING.get(name, ()):
            raise UsageError(
                f"{written} {value} serves a pooling model, and kvplan sizes models that generate text.",
                hint="an embedding model takes its weights and one step's activations, and no KV cache that grows",
            )
        if name in _JSON:
            self._take_object(name, written, value, key)
        elif name == "model":
            self.model = self.model if self.is_positional else value
        elif name == "quantization":
            self._take_quantization(value)
        elif name in SETTING_OF and not key:
            self._take_setting(SETTING_OF[name], written, value)
        else:
            self._leave(name, written)

    def _take_setting(self, setting: str, written: str, value: str) -> None:
        if setting == "max_model_len" and value.lower() in _LATER:
            self.shortens = f"{written} {value}"
            return
        try:
            read = setting_value(setting, value)
        except ValueError as error:
            raise UsageError(
                f"{written} '{value}' of the pasted command cannot be read.", hint=f"for example {_example(setting)}"
            ) from error
        except UsageError:
            if KNOBS[setting].kind == "name" and setting == "moe_backend":
                self.unmodelled.append(f"{written} {value}")
                return
            raise
        if read is not None:
            self.settings[setting] = KNOBS[setting].canonical_name(read) if KNOBS[setting].kind == "name" else read

    def _take_quantization(self, value: str) -> None:
        """A format that is made while loading is a setting; any other says what the checkpoint has."""
        folded = value.lower()
        if folded in MADE_WHILE_LOADING:
            self.settings["quantization"] = folded
        elif folded in _FORMATS_MADE or _SHORTHANDS.fullmatch(folded):
            raise UsageError(
                f"kvplan does not size weights that vLLM makes as {value}.",
                hint=f"it sizes {' and '.join(MADE_WHILE_LOADING)} made while loading, and checkpoints in any format",
            )
        elif folded != "none":
            self.checkpoint_format = folded

    def _take_object(self, name: str, written: str, value: str, key: str) -> None:
        """A whole JSON object, or one of its keys."""
        if key:
            self.objects.setdefault(name, {})[key.replace("-", "_")] = _json_value(value)
        else:
            self.objects[name] = _object(written, value)
        if name == "limit-mm-per-prompt":
            self.settings["limit_mm_per_prompt"] = json.dumps(self.objects[name])

    def _leave(self, name: str, written: str) -> None:
        (self.unmodelled if name in vllm_options().unmodelled else self.ignored).append(written)

    def take_variable(self, name: str, value: str) -> None:
        """Take a variable of the environment; those of others than vLLM say nothing of its memory."""
        if name == _LAYERS_OF_STAGES:
            self.settings["pp_layer_partition"] = value
        elif name == _GRAPHS_COUNTED:
            self.settings["estimate_cudagraphs"] = value not in NO
        elif name.startswith("VLLM_"):
            self.unmodelled.append(name)


def _is_option(word: str) -> bool:
    return word.startswith("-") and re.fullmatch(r"-\d{1,20}(?:\.\d{1,20})?", word) is None


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _object(written: str, text: str) -> dict[str, Any]:
    found = _json_value(text)
    if isinstance(found, str) and "=" in found:  # image=2,video=0, as earlier releases had it
        pairs = [item.partition("=") for item in found.split(",")]
        found = {key.strip(): _json_value(value) for key, _, value in pairs}
    if not isinstance(found, dict):
        raise UsageError(f"{written} '{text}' of the pasted command is no JSON object.", hint="put it in single quotes")
    return found


def _example(setting: str) -> str:
    return f"{option_of(setting)} {KNOBS[setting].example}"


def _unread(written: str, name: str) -> UsageError:
    return UsageError(f"kvplan does not read {written} of a pasted command.", hint=_UNREAD[name])


def _unknown(written: str, name: str) -> UsageError:
    close = get_close_matches(name, vllm_options().kinds, n=1)
    hint = f"did you mean --{close[0]}?" if close else "leave it out; kvplan's own options stand before `--`"
    return UsageError(f"'{written}' is no option of `vllm serve` that kvplan knows.", hint=hint)
