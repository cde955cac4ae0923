"""From the API's settings to a loaded model, and what the API process has to know of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from kvplan_engine.config import knobs
from kvplan_engine.device.cuda import why_no_usable_gpu
from kvplan_engine.engine import Engine
from kvplan_engine.errors import EngineError
from kvplan_engine.llm import LLM
from kvplan_engine.requests.request import LoRARequest
from kvplan_engine.server.messages import LoadModel, ModelFacts, PoolFacts


def load(order: LoadModel) -> LLM:
    """EngineError when the engine cannot start, or would serve random weights that nobody asked for."""
    llm = LLM(order.model, **_with_share(order))
    if llm.engine.model.is_dummy and order.settings.get("load_format") != "dummy":
        raise EngineError(
            f"there are no weights for '{order.model}' here, and answers of random weights would be noise.",
            hint="give a directory or a .gguf file with weights, or --load-format dummy to measure speed",
        )
    return llm


def _with_share(order: LoadModel) -> dict[str, Any]:
    """The settings, with this engine's part of the machine's memory where it runs on the CPU and nobody chose it."""
    settings = order.settings
    if order.cpu_bytes is None or settings.get("device_memory") is not None:
        return settings
    device = settings.get("device", "auto")
    is_on_cpu = device == "cpu" or (device == "auto" and why_no_usable_gpu() is not None)
    return {**settings, "device_memory": order.cpu_bytes} if is_on_cpu else settings


def model_facts(llm: LLM, name: str) -> ModelFacts:
    """``name``: the model as the user wrote it."""
    model, device = llm.engine.model, llm.engine.device
    facts = ModelFacts(
        model_id=name,
        vocab_size=model.config.vocab_size,
        dtype=model.dtype,
        is_dummy=model.is_dummy,
        kernels=model.kernels_name,
        weight_bytes=model.weight_bytes,
        device=str(device.torch_device),
        engine_pid=os.getpid(),
    )
    try:
        tokenizer = llm.tokenizer
    except EngineError as problem:
        facts.no_tokenizer = problem.message
        return facts
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        facts.no_tokenizer = "this model's tokenizer has no form that the tokenizers library reads."
        return facts
    facts.tokenizer_json = backend.to_str()
    facts.chat_template = _chat_template(tokenizer.chat_template)
    facts.special_tokens = {
        role: str(token) for role, token in tokenizer.special_tokens_map.items() if not isinstance(token, list)
    }
    return facts


def _chat_template(template: Any) -> str | None:
    """The template itself, or that called "default" where a tokenizer has several."""
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def pool_facts(engine: Engine) -> PoolFacts:
    """``engine`` as it is configured now, its pool ready to serve: nothing has run in it."""
    config = {each.name: getattr(engine.config, each.name) for each in fields(engine.config) if each.name != "model"}
    return PoolFacts(
        config=config,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.config.max_num_seqs,
        num_blocks=engine.memory.num_blocks,
        block_size=engine.memory.block_size,
        block_bytes=engine.memory.block_bytes,
        memory=asdict(engine.memory),
        touched_bytes=engine.touch_pool(),
    )


# What the API process may ask of the engine beside requests. Each command is a function of the engine.
#
# A command returns what msgpack can carry, and raises EngineError for what a user can cause.


def reset_prefix_cache(engine: Engine) -> bool:
    """Whether the cache was emptied: not while requests are unfinished."""
    return engine.reset_prefix_cache()


def statistics(engine: Engine) -> dict[str, Any]:
    """``Engine.get_stats``, after every invariant of scheduler and pool has been checked."""
    engine.check()
    return engine.get_stats()


def reconfigure(engine: Engine, **changes: Any) -> None:
    """Carve the memory anew with ``changes``.

    When they do not fit, the engine goes back to what it was, and the EngineError says what did not fit.
    """
    if engine.has_unfinished_requests():
        raise EngineError("settings cannot change while requests run.", hint="wait for them to finish")
    unknown = sorted(changes.keys() - knobs().keys())
    if unknown:
        names = ", ".join(name for name, knob in knobs().items() if knob.reconfigurable)
        raise EngineError(f"unknown setting {', '.join(unknown)}.", hint=f"one of {names}")
    before = engine.config
    try:
        engine.reconfigure(**changes)
    except (EngineError, TypeError) as problem:
        if engine.config is not before or not engine.has_pool:
            engine.reconfigure(**{name: getattr(before, name) for name in changes})
        if isinstance(problem, TypeError):
            raise EngineError(f"a setting has a value of the wrong type: {problem}.") from None
        raise


def load_adapter(engine: Engine, adapter: str, path: str) -> None:
    """Read the adapter now, so that what is wrong with it shows before a request needs it.

    One that has the same name is forgotten first: it may have been trained further.
    """
    unload_adapter(engine, adapter)
    engine.load_adapter(LoRARequest(adapter, path))


def unload_adapter(engine: Engine, adapter: str) -> None:
    """Forget an adapter, if host memory still holds it."""
    if engine.model.adapters is not None and adapter in engine.model.adapters.names:
        engine.unload_adapter(adapter)


COMMANDS: dict[str, Callable[..., Any]] = {
    "reset_prefix_cache": reset_prefix_cache,
    "statistics": statistics,
    "reconfigure": reconfigure,
    "load_adapter": load_adapter,
    "unload_adapter": unload_adapter,
}
