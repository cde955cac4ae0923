"""What the shell offers after <TAB> for a value: models, GPUs, formats and other names, in the last part of a list too.

Names of commands and options are completed by Typer, which has to load the command for them. A value needs neither: it
is answered here from names alone, in the words of Typer's completion scripts (``kvplan --install-completion``).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvplan.paths import profiles_dir
from kvplan.settings import KNOBS, WEIGHT_FORMATS

VARIABLE: Final = "_KVPLAN_COMPLETE"
_SHELLS: Final = ("complete_bash", "complete_zsh", "complete_fish")
_TAKES_MODEL: Final = ("estimate", "plan", "serve", "profile")
_MANY: Final = ("--gpu", "--quantization", "--kv-cache-dtype")
"""Options after which several values may stand."""
_FORMATS: Final = {
    "estimate": ("table", "json", "csv", "md"),
    "plan": ("table", "json", "csv", "md", "docker", "compose", "kubernetes", "helm", "html"),
    "explain": ("table", "json", "csv", "md"),
    "cache": ("table", "json", "csv", "md"),
    "models": ("table", "json", "csv", "md"),
    "gpus": ("table", "json", "csv", "md"),
}
_WEIGHTS: Final = {"plan": ("published", *WEIGHT_FORMATS)}
_ENGINES: Final = {"plan": ("vllm",), "cache": ("vllm",), "explain": ("vllm", "sglang"), "estimate": ("vllm", "kvplan")}
_DEVICES: Final = {"doctor": ("auto", "cpu", "cuda", "emulated")}
_SLO: Final = tuple(
    f"{prefix}{name}:" for prefix in ("", "p50_", "p90_", "p95_", "p99_") for name in ("ttft", "tpot", "e2el")
)
_ROUTERS: Final = {"cache": ("round-robin", "prefix", "shared")}


class Typed(NamedTuple):
    """A command line up to the cursor. ``last``: the word that is being typed, empty where none is begun."""

    words: list[str]
    last: str


def completed_value(environment: Mapping[str, str]) -> int | None:
    """Print what the shell may offer, and return the exit code; None where Typer is to answer."""
    shell = environment.get(VARIABLE, "")
    typed = _typed(shell, environment)
    if shell not in _SHELLS or typed is None or (typed.last.startswith("-") and "=" not in typed.last):
        return None
    offered = _offered(typed)
    if offered is None:
        return None
    if shell == "complete_zsh":
        quoted = "\n".join('"' + each.replace(":", r"\\:") + '"' for each in offered)
        print(f"_arguments '*: :(({quoted}))'" if offered else "_files")
    elif shell == "complete_fish" and environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if offered else 1
    else:
        print("\n".join(offered))
    return 0


def _typed(shell: str, environment: Mapping[str, str]) -> Typed | None:
    """The words behind ``kvplan``, by what each shell passes; None for what cannot be split, such as an open quote."""
    bash = shell == "complete_bash"
    text = environment.get("COMP_WORDS" if bash else "_TYPER_COMPLETE_ARGS", "")
    try:
        words = shlex.split(text)[1:]
    except ValueError:
        return None
    if bash:
        place = int(environment.get("COMP_CWORD", "0") or 0) - 1
        return Typed(words[:place], words[place] if 0 <= place < len(words) else "")
    return Typed(words, "") if text.endswith((" ", "\n")) or not words else Typed(words[:-1], words[-1])


def _offered(typed: Typed) -> list[str] | None:
    """The values that fit at the cursor; None where a command or an option's name is wanted."""
    words = [word for word in typed.words if word != "="]  # bash cuts --gpu=l4 in three
    command = next((word for word in words if not word.startswith("-")), None)
    if command is None or "--" in words:
        return None
    head, equals, value = typed.last.partition("=")
    if head.startswith("--"):
        found = _values(command, head, value) if equals else None
        return None if found is None else [f"{head}={each}" for each in found]
    before = words[words.index(command) + 1 :]
    option = before[-1] if before and before[-1].startswith("--") else None
    if option is not None and "=" not in option:
        return _values(command, option, typed.last)
    begun = next((word for word in reversed(before) if word.startswith("--")), None)
    more = (_values(command, begun, typed.last) or []) if begun in _MANY else []
    # Behind the trace, which is a file that the shell completes.
    takes_model = command in _TAKES_MODEL or (command == "cache" and any(not word.startswith("-") for word in before))
    models = complete_models(typed.last) if takes_model else []
    return list(dict.fromkeys([*more, *models])) if more or takes_model else None


def _values(command: str, option: str, last: str) -> list[str] | None:
    """Values of an option that begin with ``last``; None for an option that takes any."""
    knob = KNOBS.get(option.removeprefix("--").replace("-", "_"))
    named: dict[str, Callable[[str], list[str]]] = {
        "--gpu": complete_gpus,
        "--model": complete_models,
        "--speculative-model": complete_models,
        "--quantization": lambda text: _in_list(text, _WEIGHTS.get(command, ("auto", "none", *WEIGHT_FORMATS))),
        "--engine": lambda text: _beginning(_ENGINES.get(command, ()), text),
        "--format": lambda text: _beginning(_FORMATS.get(command, ()), text),
        "--slo": lambda text: _beginning(_SLO, text),
        "--router": lambda text: _beginning(_ROUTERS.get(command, ()), text),
    }
    if option == "--device" and command in _DEVICES:
        return _beginning(_DEVICES[command], last)
    if option in named:
        return named[option](last)
    return _in_list(last, knob.choices) if knob is not None and knob.choices else None


def complete_models(last: str) -> list[str]:
    """Short names, or ids of the Hugging Face hub where an owner is begun."""
    if "/" not in last and last == last.lower():
        return _beginning(sorted(path.stem for path in (profiles_dir() / "models").glob("*.json")), last)
    from kvplan.catalog.models import profiles

    return _beginning((name for each in profiles() for name in (each["id"], *each["aliases"])), last)


def complete_gpus(last: str) -> list[str]:
    """Names of GPUs, their slices and clouds' instances, also behind a comma and behind a count: ``l4,8xh1``."""
    import json

    def read(path: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    folder = profiles_dir()
    names = [gpu["id"] for path in sorted((folder / "gpus").glob("*.json")) for gpu in read(path)["gpus"]]
    for parts in read(folder / "mig.json")["parts"]:
        names += [f"{gpu}-{part['name']}" for gpu in parts["gpus"] for part in parts["slices"]]
    names += [each["name"] for each in read(folder / "clouds.json")["instances"]]
    return _in_list(last, names, counted=True)


def _in_list(typed: str, names: Iterable[str], *, counted: bool = False) -> list[str]:
    head, comma, last = typed.rpartition(",")
    count, x, rest = last.partition("x") if counted else ("", "", "")
    is_counted = bool(x) and count.isdigit()
    before = head + comma + (count + x if is_counted else "")
    return [before + name for name in _beginning(names, rest if is_counted else last)]


def _beginning(names: Iterable[str], typed: str) -> list[str]:
    """Return the names that begin so, in any case, each once."""
    folded = typed.casefold()
    return [name for name in dict.fromkeys(names) if name.casefold().startswith(folded)]
