"""From the text of a config.json to a ``ModelSpec``: pick the architecture, refuse an unknown one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from kvplan.catalog.architectures import of_type
from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.quantization.notes import quantization_notes
from kvplan.catalog.quantization.reading import read_quantization
from kvplan.catalog.registry import find_reader, known_architectures
from kvplan.catalog.spec import LayerSpec, ModelSpec
from kvplan.errors import KvplanError, UnknownArchitectureError
from kvplan.files import parse_json

_NOT_GENERATING = (
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
    "ForPreTraining",
    "ForImageClassification",
    "ForCTC",
)
_NOT_LANGUAGE_MODELS = frozenset(
    (
        *("albert", "bert", "camembert", "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra", "esm"),
        *("modernbert", "mpnet", "nomic_bert", "roberta", "xlm-roberta", "clap", "clip", "clip_text_model"),
        *("clip_vision_model", "convnext", "dinov2", "resnet", "sam", "segformer", "siglip", "siglip_vision_model"),
        *("swin", "vit", "wav2vec2", "yolos"),
    )
)
_DTYPES = {"float32", "float16", "bfloat16", "float64"}
_UNSAID_DTYPES = {"gpt_oss": "bfloat16", "minimax_m2": "bfloat16"}
"""Quantized checkpoints whose published config leaves the dtype out; servers find it in the weights' headers."""


def parse_config(text: str, *, where: str) -> dict[str, Any]:
    """The JSON object in ``text``; ``where`` names it in the error."""
    try:
        config = parse_json(text)
    except ValueError as error:
        raise KvplanError(f"{where} is not valid JSON ({error}).", hint="pass a published config.json") from error
    if not isinstance(config, dict):
        raise KvplanError(f"{where} is not a JSON object.", hint="pass a published config.json")
    return config


def read_config(
    config: Mapping[str, Any],
    *,
    model_id: str,
    aliases: tuple[str, ...] = (),
    source: str | None = None,
    assumptions: Mapping[str, str] | None = None,
    stored_dtype: str | None = None,
) -> ModelSpec:
    """Everything a published config says about a causal language model. ``stored_dtype``: of the weights beside it.

    KvplanError for impossible values, UnknownArchitectureError for architectures that no reader knows.
    """
    given = dict(assumptions or {})
    read = partial(_read, config, model_id=model_id, aliases=aliases, source=source, stored_dtype=stored_dtype)
    spec = read(given)
    said = (_said(key, given, spec, read) for key in given)
    return replace(spec, assumptions=(*said, *spec.assumptions)) if given else spec


def _said(key: str, given: Mapping[str, str], spec: ModelSpec, read: Callable[[Mapping[str, str]], ModelSpec]) -> str:
    """Say that ``key`` was assumed, or that it makes no difference: it is mistyped, or says what the config does."""
    try:
        without = read({name: value for name, value in given.items() if name != key})
    except KvplanError:
        without = None
    if without is not None and replace(without, assumptions=spec.assumptions) == spec:
        return f"--assume {key}={given[key]} changes nothing of what is sized."
    return f"'{key}' = {given[key]}, because --assume says so."


def _read(
    config: Mapping[str, Any],
    assumptions: Mapping[str, str],
    *,
    model_id: str,
    aliases: tuple[str, ...],
    source: str | None,
    stored_dtype: str | None,
) -> ModelSpec:
    view = ConfigView(_with_assumptions(config, assumptions))
    architecture = choose_architecture(view)
    reader = find_reader(architecture)
    if reader is None:
        raise _unknown(architecture, view)
    body = reader(view)
    quantization = read_quantization(_with_expert_dtype(view))
    tensors = [layer.all_tensors for layer in body.layers]
    has_towers = any(extra.kind in ("vision", "audio") for extra in body.extras)
    for note in quantization_notes(quantization, tensors, body.tensors, has_towers=has_towers):
        view.assume(note)
    return ModelSpec(
        id=model_id,
        architecture=architecture,
        model_type=view.text("model_type", default=""),
        layers=_shared(body.layers),
        hidden_size=body.hidden_size,
        vocab_size=body.vocab_size,
        max_position_embeddings=body.max_position_embeddings,
        dtype=read_dtype(view, stored_dtype),
        tie_word_embeddings=body.tied,
        tensors=body.tensors,
        rope=body.rope,
        further_ropes=body.further_ropes,
        residual_streams=body.residual_streams,
        quantization=quantization,
        extras=body.extras,
        assumptions=tuple(view.assumptions),
        aliases=aliases,
        source=source,
        raw_config=config,
    )


def _with_expert_dtype(view: ConfigView) -> ConfigView:
    """DeepSeek V4.1 says inside ``quantization_config`` what V4 says beside it (vLLM's DeepseekV41Config)."""
    section = view.section("quantization_config")
    if section is None or not section.has("expert_dtype") or view.has("expert_dtype"):
        return view
    return view.changed({"expert_dtype": section.config["expert_dtype"]})


def _shared(layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """The same layers, those made of the same parts being one object: sums count it instead of repeating it."""
    known: dict[tuple[int, ...], LayerSpec] = {}

    def same(layer: LayerSpec) -> LayerSpec:
        parts = (layer.mixer, layer.parallel_state, layer.cross_attention, layer.feed_forward)
        return known.setdefault(tuple(map(id, (*parts, layer.tensors, layer.repeats))), layer)

    return tuple(map(same, layers))


def choose_architecture(view: ConfigView) -> str:
    """``architectures[0]``, else what ``model_type`` stands for. Refuses what generates no text, by name."""
    named = view.texts("architectures") or []
    model_type = view.text("model_type", default="")
    for architecture in named:
        if architecture.endswith(_NOT_GENERATING):
            raise _not_causal(architecture, model_type)
    if not named and model_type in _NOT_LANGUAGE_MODELS:
        raise _not_causal(f"model_type '{model_type}'")
    if named and find_reader(named[0]) is not None:
        return named[0]
    if model_type in _NOT_LANGUAGE_MODELS:
        raise _not_causal(named[0])
    if named and not named[0].endswith("Model"):
        return named[0]
    known = of_type(model_type)
    if known is not None:
        if named:
            _check_bare_model(view, named[0], known.architecture)
        return known.architecture
    if named or model_type:
        return named[0] if named else f"model_type '{model_type}'"
    raise KvplanError(
        "The config names neither 'architectures' nor 'model_type'.",
        hint="pass the published config.json, or say --assume architectures=LlamaForCausalLM",
    )


def _check_bare_model(view: ConfigView, named: str, architecture: str) -> None:
    """Note what a decoder without a head is sized as; KvplanError for one that looks both ways (EmbeddingGemma)."""
    text = view.section("text_config") or view
    if text.config.get("use_bidirectional_attention") is True or text.config.get("is_causal") is False:
        raise KvplanError(
            f"{named} looks both ways: it is served for pooling and keeps no KV cache.",
            hint=f"--assume architectures={architecture} sizes it as a decoder",
        )
    view.assume(
        f"{named} is sized as {architecture}, head included: as a pooling model vLLM loads no head, and keeps the KV "
        "cache of the decoder."
    )


def _not_causal(what: str, model_type: str = "") -> KvplanError:
    """vLLM serves decoders with another head for pooling, over the KV cache of the model that generates."""
    known = of_type(model_type)
    if known is not None and model_type not in _NOT_LANGUAGE_MODELS:
        return KvplanError(
            f"{what} generates no text: vLLM serves it for pooling, with the KV cache of its decoder.",
            hint=f"--assume architectures={known.architecture} sizes that decoder, with the head that generates",
        )
    return KvplanError(
        f"{what} is not a causal language model: it generates no text and keeps no KV cache.",
        hint="pass a model that generates text",
    )


def _unknown(architecture: str, view: ConfigView) -> UnknownArchitectureError:
    missing = "what each of its layers caches and which weights it has"
    return UnknownArchitectureError(
        f"Unknown architecture {architecture}: kvplan does not know {missing}.",
        hint="if its layers are like those of a known architecture, say so: --assume architectures=LlamaForCausalLM "
        f"({len(known_architectures())} are known: kvplan models --architectures)",
    )


def _with_assumptions(config: Mapping[str, Any], assumptions: Mapping[str, str]) -> dict[str, Any]:
    merged = dict(config)
    for key, text in assumptions.items():
        target, name = merged, key
        while "." in name:
            section, name = name.split(".", 1)
            inner = target.get(section)
            target[section] = dict(inner) if isinstance(inner, Mapping) else {}
            target = target[section]
        value = _assumed_value(text)
        target[name] = [value] if name == "architectures" and isinstance(value, str) else value
    return merged


def _assumed_value(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


def _dtype_sections(view: ConfigView) -> list[ConfigView]:
    """Where a config may name its dtype: at the top, else in the sections that hold the language model."""
    thinker = view.section("thinker_config") or view.section("vlm_config")
    outer = [view] if thinker is None else [view, thinker]
    names = ("text_config", "llm_config", "language_config")
    inner = [section for each in outer for name in names if (section := each.section(name)) is not None]
    return outer + inner


def read_dtype(view: ConfigView, stored_dtype: str | None = None) -> str:
    """The dtype of the published weights: as the config says, else as they are stored, else float32.

    As vLLM's ``_find_dtype`` (vllm/config/model.py); transformers takes float32 too.
    """
    for where in _dtype_sections(view):
        if where.has("torch_dtype") or where.has("dtype"):
            name = where.text("dtype", "torch_dtype").removeprefix("torch.")
            if name not in _DTYPES:
                raise where.reject("torch_dtype", "one of " + ", ".join(sorted(_DTYPES)))
            return name
    if stored_dtype is not None:
        return stored_dtype
    model_type = view.text("model_type", default="")
    if model_type in _UNSAID_DTYPES:
        found = _UNSAID_DTYPES[model_type]
        view.assume(f"The config names no dtype: what {model_type} does not quantize is stored in {found}.")
        return found
    view.assume("The config names no dtype: its weights are taken to be float32, as transformers does.")
    return "float32"
