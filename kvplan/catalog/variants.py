"""Models known by their names alone: quantized, converted or mirrored checkpoints of a model whose shape ships.

    RedHatAI/Qwen2.5-Coder-7B-Instruct-quantized.w4a16
             Qwen2.5-Coder-7B-Instruct                    the shape of Qwen2.5-7B-Instruct, by a rule
                                       quantized.w4a16    int4, one scale for 128 weights

Only names whose shape is certain are taken: the same family, size and version. A fine-tune under a name of its own
stays unknown.

Names of Ollama's library are read as those of the checkpoints that they are files of:

    gemma4:31b-it-q4_K_M
    gemma4                  Google's gemma-4: Ollama writes families without the hyphen
           31b-it           gemma-4-31b-it, and of a mixture gemma-4-26b-a4b for 26b
                  q4_K_M    how the file is quantized; 4 bits where nothing is said

A tag that names no size (``latest``) may be any of a family's, and names with an owner (``someone/model:8b``) are
anybody's: neither is resolved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

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
Config = dict[str, Any]

_QUANTIZATION_KEYS: Final = ("quantization_config", "compression_config")


def _packed(bits: int, kind: str = "int", **weights: Any) -> Config:
    """compressed-tensors with one group for all linear layers but the head."""
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind, "symmetric": True, **weights}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


_AWQ: Final[Config] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
_FP8_BLOCKS: Final[Config] = {
    "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head"],
}  # fmt: skip
_NVFP4: Final[Config] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}


def _gptq(bits: int) -> Config:
    return {"quant_method": "gptq", "bits": bits, "group_size": 128, "desc_act": False}


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A weight format as names spell it. ``config``: its usual quantization_config; None for plain 16 bits.

    ``is_file``: the repository holds files of several formats, so that the name does not tell which.
    """

    pattern: str
    words: str
    config: Config | None
    is_file: bool = False


_FORMATS: Final[tuple[NamedFormat, ...]] = (
    NamedFormat(r"(?:-qat)?(?:-(?:ud-)?i?q\d\w*)?-gguf", "GGUF", None, is_file=True),
    NamedFormat(r"-awq(?:-(?:int4|4bit|w4a16))?|-int4-awq", "AWQ, 4 bits in groups of 128", _AWQ),
    NamedFormat(r"-gptq-(?:int8|8bit)", "GPTQ, 8 bits in groups of 128", _gptq(8)),
    NamedFormat(r"-gptq(?:-(?:int4|4bit))?(?:-128g)?|-int4-gptq", "GPTQ, 4 bits in groups of 128", _gptq(4)),
    NamedFormat(
        r"(?:-unsloth)?-bnb-4bit",
        "bitsandbytes, 4 bits",
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["lm_head"]},
    ),
    NamedFormat(r"-qat-w4a16-ct", "int4, groups of 32", _packed(4, strategy="group", group_size=32)),
    NamedFormat(r"-(?:quantized\.)?w4a16", "int4, groups of 128", _packed(4, strategy="group", group_size=128)),
    NamedFormat(r"-(?:quantized\.)?w8a(?:8|16)|-int8", "int8, one scale per channel", _packed(8, strategy="channel")),
    NamedFormat(
        r"-fp8-kv",
        "fp8, one scale per tensor, beside scales for an fp8 KV cache (--kv-cache-dtype fp8)",
        {"quant_method": "fp8", "activation_scheme": "static", "modules_to_not_convert": ["lm_head"]},
    ),
    NamedFormat(
        r"-fp8-block",
        "fp8, blocks of 128 x 128",
        _packed(8, "float", strategy="block", block_structure=[128, 128]),
    ),
    NamedFormat(r"-fp8-dynamic", "fp8, one scale per channel", _packed(8, "float", strategy="channel")),
    NamedFormat(r"-nvfp4(?:-v2|-w4a4)?|-fp4", "NVFP4", _NVFP4),
    NamedFormat(r"-(?:bf16|fp16)", "16 bits", None),
)
_FP8_OF_QWEN: Final = NamedFormat(r"-fp8", "fp8, blocks of 128 x 128", _FP8_BLOCKS)
_FP8_OF_OTHERS: Final = NamedFormat(
    r"-fp8", "fp8, one scale per tensor", {"quant_method": "fp8", "activation_scheme": "static"}
)
_IN_BLOCKS: Final = ("", "qwen", "stepfun-ai", "inclusionai")
"""``-FP8`` alone: these publish blocks, NVIDIA and Red Hat one scale per tensor.

Step-3.5-Flash-FP8 names ``weight_scale_inv`` of 1 x 128 inputs in public notes on running it with AMD's ATOM. Of
inclusionAI's none was read: blocks are a guess, which moves the weights by 0.02 %.
"""

_FP8_OF_GLM_4: Final = NamedFormat(r"-fp8", "fp8, one scale per channel", _packed(8, "float", strategy="channel"))
"""Format that the configs of GLM-4.5-FP8 (hlky/dinoml_v2, agents/plans/transformers/glm4_moe), 4.5V and 4.6V state."""

_AWQ_OF_CYANKIWI: Final = NamedFormat(
    r"-awq(?:-(?:int4|4bit))?",
    "AWQ in compressed-tensors, 4 bits in groups of 32",
    _packed(4, strategy="group", group_size=32, symmetric=False),
)
"""After the shipped profile of theirs; P042 of tests/data/vllm_startups.csv has a width that is no multiple of 128."""
_IN_SMALL_GROUPS: Final = ("cyankiwi", "cpatonn")
_TRAINED_FOR_IT: Final = "-qat"
"""Trained with the format in mind, which changes no shape."""

_FP8_OF_META: Final = NamedFormat(
    r"-fp8",
    "fp8, one scale per channel; the attention and the first and last layers in 16 bits",
    {
        "quant_method": "fbgemm_fp8",
        "modules_to_not_convert": [
            *(f"model.layers.{layer}.self_attn.{part}_proj" for layer in range(126) for part in "qkvo"),
            *(f"model.layers.{layer}.mlp.{part}_proj" for layer in (0, 125) for part in ("gate", "up", "down")),
        ],
    },
)
"""Meta's own fp8 of Llama 3.1 405B, after llama-405B-FP8.py of huggingface/huggingface-llama-recipes."""

_SAME_SHAPE: Final[tuple[tuple[str, str], ...]] = (
    (r"qwen2\.5-coder-(1\.5b|3b|7b|14b|32b)(?:-instruct)?", r"qwen2.5-\1-instruct"),
    (r"qwen2\.5-coder-0\.5b(?:-instruct)?", "qwen2.5-0.5b"),
    (r"qwen3\.8-27b", "qwen3.5-27b"),
    (r"qwen3-(30b-a3b|4b)-thinking-2507", r"qwen3-\1-instruct-2507"),
    (r"qwen3-vl-(2b|4b|8b|30b-a3b|235b-a22b)-thinking", r"qwen3-vl-\1"),
    (r"deepseek-r1-distill-qwen-7b", "qwen2.5-7b"),
    (r"deepseek-r1-distill-qwen-32b", "qwq-32b"),
    (r"kimi-k2-base", "kimi-k2"),
    (r"glm-4\.5(-air)?-base", r"glm-4.5\1"),
    (r"codellama-(13b|34b)-instruct(?:-hf)?", r"codellama-\1"),
    (r"mixtral-8x22b-instruct", "mixtral-8x22b-instruct"),
    (r"minimax-m2(?:\.1)?", "minimax-m2.5"),
    (r"phi-4-mini-reasoning", "phi-4-mini"),
    (r"(?:vllm-)?translategemma-(4b|27b)-it", r"gemma-3-\1"),
    (r"deepseek-v4-pro-(?:0813|dspark)", "deepseek-v4-pro"),
    (r"deepseek-v4-flash-dspark", "deepseek-v4-flash-0731"),
    (r"nvidia-nemotron-3-super-120b-a12b-base", "nemotron-3-super-120b-fp8"),
    (r"lfm2\.5-1\.2b-jp(?:-202606)?", "lfm2-1.2b"),
    (r"paddleocr-vl-1\.[56]", "paddleocr-vl"),
)
"""Names of models with the shape and the positions of another one that ships: a pattern, and that profile.

From MiniMax M2 on: vLLM's recipes serve them with the other one's size and context length
(github.com/vllm-project/recipes, 8959cf6).
Qwen3.8-27B: its index's total size is 55,562,855,904 B, that of Qwen3.5-27B to the byte.
"""

_LONGER: Final[tuple[tuple[str, str, Config], ...]] = (
    (
        r"qwen3-(235b-a22b)-(?:instruct|thinking)-2507",
        r"qwen3-\1",
        {"max_position_embeddings": 262144, "rope_theta": 5000000},
    ),
    (r"qwen3guard-gen-(0\.6b|4b|8b)", r"qwen3-\1", {"max_position_embeddings": 32768}),
    (r"qwen2\.5-32b", "qwen2.5-32b-instruct", {"max_position_embeddings": 131072}),
    (r"phi-4-reasoning", "phi-4", {"max_position_embeddings": 32768}),
    (r"ministral-3-(3b|8b|14b)-(?:reasoning|base)-2512", r"ministral-3-\1", {"quantization_config": None}),
)
"""Names of models with the layers of one that ships and other positions or weights: a pattern, that profile, and what
differs (None: not there).

Qwen3-235B-A22B's of July 2025: their model cards name the same layers, heads and experts, and 262,144 tokens natively.
The others: positions and formats as in vLLM's recipes.
"""

_PUBLISHED_PLAIN: Final = ("qwen3.6-", "gemma-4-", "glm-4.5v", "glm-4.6v")
"""Families whose unquantized checkpoints are what their maker publishes; of some, only a quantized profile ships."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A profile to be sized under another name. ``config``: the profile's, its weights stored as the name says.

    ``cache_note``: what the KV cache is taken for, where that is a guess.
    """

    profile: Mapping[str, Any]
    config: Config
    note: str
    cache_note: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        return (self.note,) if self.cache_note is None else (self.note, self.cache_note)


def find_variant(name: str, profiles: Iterable[Mapping[str, Any]]) -> Variant | None:
    """What ``name`` (``organisation/model`` or ``model``) is a checkpoint of; None where its shape is not certain."""
    organisation, _, last = name.casefold().rpartition("/")
    shapes = _by_name(profiles)
    profile = _shape(last, shapes)
    if profile is not None:
        return _as_shipped(name, organisation, profile)
    stem, stored = _split(last, organisation)
    profile = _shape(stem, shapes)
    if profile is None:
        # A quantized checkpoint of the model, where only such ones ship; of a base model one of its instructed twin.
        names = (f"{stem}-{suffix}" for suffix in ("nvfp4", "fp8", "it-nvfp4"))
        profile = next((shapes[name] for name in names if name in shapes), None)
        if profile is None or (stored is None and not stem.startswith(_PUBLISHED_PLAIN)):
            return None
        if stored is None or stored.is_file:
            stored = NamedFormat("", "16 bits", None)
    elif stored is None:
        return None
    config = profile["config"] if stored.is_file else _stored_as(profile["config"], stored)
    cache_note = _NVIDIA_CACHE if organisation == "nvidia" and stored.config is not None else None
    return Variant(profile, config, _note(name, profile, _weights_words(stored)), cache_note)


def _as_shipped(name: str, organisation: str, profile: Mapping[str, Any]) -> Variant:
    """A checkpoint whose name ends like a profile's. Of another organisation's the KV cache says nothing about it."""
    makers = {each.casefold().rpartition("/")[0] for each in (profile["id"], *profile["aliases"])}
    config = profile["config"] if organisation in ("", *makers) else _without_cache(profile["config"])
    if config == profile["config"]:
        return Variant(profile, config, _note(name, profile, ""))
    words = ", weights stored as there, by another organisation: its own head and list of modules in 16 bits may differ"
    note = _note(name, profile, words)
    return Variant(profile, config, note, _OTHERS_CACHE.format(of=profile["id"]))


_OTHERS_CACHE: Final = (
    "The KV cache is taken to be in the model's dtype: that {of} asks for fp8 says nothing about another "
    "organisation's checkpoint (--kv-cache-dtype fp8 sizes it so)."
)
_NVIDIA_CACHE: Final = (
    "The KV cache is taken to be in the model's dtype, though most of NVIDIA's quantized checkpoints ask for fp8 "
    "(--kv-cache-dtype fp8 sizes it so)."
)
_CACHE_KEYS: Final = ("kv_cache_quant_algo", "kv_cache_scheme")


def _without_cache(config: Mapping[str, Any]) -> Config:
    """``config`` without the KV cache that its weights were calibrated for, in whichever section it is named."""
    kept = {key: value for key, value in config.items() if key not in _CACHE_KEYS}
    sections = (*_QUANTIZATION_KEYS, "text_config", "quantization")
    return {
        key: _without_cache(value) if key in sections and isinstance(value, Mapping) else value
        for key, value in kept.items()
    }


def _by_name(profiles: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Every profile under its short name and under the last parts of its id and aliases."""
    found: dict[str, Mapping[str, Any]] = {}
    for profile in profiles:
        for each in (profile["name"], profile["id"], *profile["aliases"]):
            found.setdefault(each.casefold().rsplit("/", 1)[-1], profile)
    return found


def _shape(stem: str, shapes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    plain = stem.removeprefix("meta-")
    for candidate in (stem, plain, f"{plain}-hf", f"{stem}-v0.1", f"{stem}-bf16"):
        if candidate in shapes:
            return shapes[candidate]
    for pattern, base in _SAME_SHAPE:
        match = re.fullmatch(pattern, stem)
        if match:
            return shapes.get(match.expand(base))
    for pattern, base, differences in _LONGER:
        match = re.fullmatch(pattern, stem)
        profile = shapes.get(match.expand(base)) if match else None
        if profile is not None:
            changed = {**profile["config"], **differences}
            gone = {key for key, value in differences.items() if value is None}
            return {**profile, "config": {key: value for key, value in changed.items() if key not in gone}}
    return None


def _split(last: str, organisation: str) -> tuple[str, NamedFormat | None]:
    own = (_AWQ_OF_CYANKIWI,) if organisation in _IN_SMALL_GROUPS else ()
    for stored in (*own, *_FORMATS, _fp8(last, organisation)):
        match = re.fullmatch(rf"(.+?)(?:{stored.pattern})", last)
        if match:
            return match.group(1).removesuffix(_TRAINED_FOR_IT), stored
    return last, None


def _fp8(last: str, organisation: str) -> NamedFormat:
    if organisation in ("meta-llama", "") and re.search(r"\bllama-3\.1-405b\b", last):
        return _FP8_OF_META
    if organisation == "zai-org" and last.startswith("glm-4."):
        return _FP8_OF_GLM_4
    return _FP8_OF_QWEN if organisation in _IN_BLOCKS else _FP8_OF_OTHERS


def _stored_as(config: Mapping[str, Any], stored: NamedFormat) -> Config:
    plain: Config = {key: value for key, value in config.items() if key not in _QUANTIZATION_KEYS}
    for key, section in plain.items():
        if isinstance(section, Mapping) and any(each in section for each in _QUANTIZATION_KEYS):
            plain[key] = {inner: value for inner, value in section.items() if inner not in _QUANTIZATION_KEYS}
    return plain if stored.config is None else plain | {"quantization_config": stored.config}


def _weights_words(stored: NamedFormat) -> str:
    if stored.is_file:
        return ", weights as published; such a repository holds several files: give the .gguf file for its own size"
    if stored.config is None:
        return f", weights as its name says: {stored.words}"
    return f", weights as its name says: {stored.words}; what stays in 16 bits, head or cache, as is usual for it"


def _note(name: str, profile: Mapping[str, Any], weights: str) -> str:
    return (
        f"{name} is sized from its name alone: the shape of {profile['id']}{weights}. Pass its config.json to be sure."
    )


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
