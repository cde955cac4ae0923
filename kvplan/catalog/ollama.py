"""Names of Ollama's library as those of the checkpoints that they are files of.

    gemma4:31b-it-q4_K_M
    gemma4                  Google's gemma-4: Ollama writes families without the hyphen
           31b-it           gemma-4-31b-it, and of a mixture gemma-4-26b-a4b for 26b
                  q4_K_M    how the file is quantized; 4 bits where nothing is said

A tag that names no size (``latest``) may be any of a family's, and names with an owner (``someone/model:8b``) are
anybody's: neither is resolved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

_NAME: Final = re.compile(r"(?:ollama\.com/)?(?:library/)?([a-z][a-z0-9.-]*):([a-z0-9][a-z0-9._-]*)")
_FILE_FORMAT: Final = re.compile(r"-?(?:i?q\d\w*|fp16|bf16|f16|mxfp\d|nvfp4|qat)\b")
_TUNED: Final = ("instruct", "it", "chat")
_OTHERWISE: Final = {
    "phi4:14b": "phi-4",
    "deepseek-v2:16b": "deepseek-v2-lite",
    "deepseek-v2:236b": "deepseek-v2",
    "deepseek-v3:671b": "deepseek-v3",
    "deepseek-coder-v2:16b": "deepseek-coder-v2-lite",
    "deepseek-r1:7b": "deepseek-r1-distill-qwen-7b",
    "deepseek-r1:14b": "deepseek-r1-distill-qwen-14b",
    "deepseek-r1:32b": "deepseek-r1-distill-qwen-32b",
    "deepseek-r1:70b": "deepseek-r1-distill-llama-70b",
    "deepseek-r1:671b": "deepseek-r1",
}
"""Names that do not say what their model is called elsewhere (ollama.com/library). Not deepseek-r1:8b: that was Llama's
distillation first, and is Qwen3's since May 2025."""


def checkpoint_of_ollama(name: str, names: Iterable[str], *are_known: Callable[[str], bool]) -> str | None:
    """Return the known name of the model that Ollama calls ``name``; None where it is no such name, or not known.

    names: all short names, among which mixtures are looked for (``qwen3-30b-a3b`` for ``qwen3:30b``). are_known: tell
    whether a name is known, the surest first.
    """
    parts = _NAME.fullmatch(name.casefold())
    if parts is None:
        return None
    family, tag = parts[1], _FILE_FORMAT.sub("", parts[2])
    if f"{family}:{tag}" in _OTHERWISE:
        return _OTHERWISE[f"{family}:{tag}"]
    candidates = []
    for stem in _stems(family, tag):
        mixtures = [each for each in names if re.fullmatch(re.escape(stem) + r"-a\d+b", each)]
        candidates += [*(f"{stem}-{word}" for word in _TUNED), stem, *(mixtures if len(mixtures) == 1 else ())]
    return next((each for is_known in are_known for each in candidates if is_known(each)), None)


def _stems(family: str, tag: str) -> Iterator[str]:
    """Yield the ways to write a name with its size: ``llama-3.2-11b-vision`` for ``llama3.2-vision:11b``."""
    size, _, rest = tag.partition("-")
    if not re.fullmatch(r"e?\d[\dx.]*[bm]|[a-z]+", size) or size == "latest":
        return
    if rest and rest not in _TUNED:
        size = tag
    for spelt in dict.fromkeys((hyphenated(family), family)):
        base, _, kind = spelt.rpartition("-")
        yield f"{spelt}-{size}"
        if kind.isalpha() and base:
            yield f"{base}-{size}-{kind}"


def hyphenated(name: str) -> str:
    """``gemma4:31b`` -> ``gemma-4-31b``: a family and its version apart, as makers write most of them."""
    return re.sub(r"^([a-z]+)(?=\d)", r"\1-", name.casefold()).replace(":", "-")
