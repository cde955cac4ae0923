"""What an operator does with a running server."""

from __future__ import annotations

import asyncio
import math
import platform
from typing import Any

import msgspec

from kvplan_engine.config import EngineConfig, knobs
from kvplan_engine.errors import EngineError
from kvplan_engine.requests.request import LoRARequest
from kvplan_engine.server.http.exchange import Exchange
from kvplan_engine.server.http.service import version
from kvplan_engine.server.http.state import ServerState, read_body
from kvplan_engine.server.openai.errors import ApiError, bad_request

# How long new settings wait for the requests in flight.
_PATIENCE_SECONDS = 60.0
_MOST_PATIENCE_SECONDS = 1_000_000


async def server_info(state: ServerState, exchange: Exchange) -> None:
    """Settings, memory and statistics now. Each engine checks every invariant of its pool before it answers.

    What the engines do not share stands under "engines"; with one engine at the top, too.
    """
    client = state.client
    model, pool = client.model, client.pool
    statistics = await client.command_all("statistics")
    engines = [
        {"engine_pid": engine.model.engine_pid, "memory": engine.pool.memory, "stats": stats}
        for engine, stats in zip(client.engines, statistics, strict=True)
    ]
    info = {
        "version": version(),
        "python": platform.python_version(),
        "model": {
            "id": model.model_id,
            "dtype": model.dtype,
            "device": model.device,
            "kernels": model.kernels,
            "vocab_size": model.vocab_size,
            "weight_bytes": model.weight_bytes,
            "is_dummy": model.is_dummy,
        },
        "data_parallel_size": len(engines),
        "max_model_len": pool.max_model_len,
        "config": pool.config,
        **(engines[0] if len(engines) == 1 else {}),
        "engines": [{"engine": number, **engine} for number, engine in enumerate(engines)],
    }
    await exchange.answer(200, msgspec.json.encode(info))


async def reset_prefix_cache(state: ServerState, exchange: Exchange) -> None:
    """Reset it as vLLM does: success is false while requests hold blocks, in any engine."""
    success = await state.client.reset_prefix_caches()
    await exchange.answer(200, msgspec.json.encode({"success": success}))


async def show_runtime_config(state: ServerState, exchange: Exchange) -> None:
    await exchange.answer(200, msgspec.json.encode(_runtime_config(state)))


async def change_runtime_config(state: ServerState, exchange: Exchange) -> None:
    """Carve the memory of every engine anew with the settings in the body; the weights stay loaded.

    New requests wait meanwhile, those in flight are waited for: ?timeout=SECONDS, 60 by default, then 409.
    """
    changes = await read_body(state, exchange, dict[str, Any])
    _check_changes(state, changes)
    try:
        await state.client.reconfigure(changes, _patience(exchange))
    except asyncio.TimeoutError:
        message = "Requests are still in flight, so nothing was changed."
        raise ApiError(409, message, "ConflictError") from None
    await exchange.answer(200, msgspec.json.encode(_runtime_config(state)))


def _runtime_config(state: ServerState) -> dict[str, Any]:
    """num_blocks, kv_cache_size_tokens: of each engine; of the smallest where one has measured a larger overhead."""
    pool = min((engine.pool for engine in state.client.engines), key=lambda pool: pool.num_blocks)
    return {
        "config": {name: value for name, value in pool.config.items() if knobs()[name].reconfigurable},
        "data_parallel_size": len(state.client.engines),
        "max_model_len": pool.max_model_len,
        "num_blocks": pool.num_blocks,
        "block_size": pool.block_size,
        "kv_cache_size_tokens": pool.num_blocks * pool.block_size,
    }


def _check_changes(state: ServerState, changes: dict[str, Any]) -> None:
    """400 for what is no setting, cannot change, or has a value of the wrong type or out of range."""
    for name in changes:
        if name not in knobs() or not knobs()[name].reconfigurable:
            possible = ", ".join(each for each, knob in knobs().items() if knob.reconfigurable)
            raise bad_request(
                f"'{name}' is not a setting that a running server can change; these are: {possible}.", name
            )
    try:
        msgspec.convert({**state.client.pool.config, "model": "", **changes}, EngineConfig)
    except msgspec.ValidationError as problem:
        raise bad_request(f"A setting has a wrong value: {problem}.") from None
    except EngineError as problem:
        raise bad_request(problem.message) from None


def _patience(exchange: Exchange) -> float:
    text = exchange.query("timeout")
    try:
        seconds = float(text) if text else _PATIENCE_SECONDS
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _MOST_PATIENCE_SECONDS:
        raise bad_request(
            f"timeout '{text}' is not a number of seconds from 0 to {_MOST_PATIENCE_SECONDS:,}.", "timeout"
        )
    return seconds


# Adapters as models: their names, and loading and unloading them at run time, with vLLM's paths and answers.


_TEXT = [(b"content-type", b"text/plain; charset=utf-8")]


class LoadBody(msgspec.Struct):
    """load_inplace: an adapter of this name is replaced."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadBody(msgspec.Struct):
    """vLLM's clients also send a number, which is not needed."""

    lora_name: str
    lora_int_id: int | None = None


async def load_adapter(state: ServerState, exchange: Exchange) -> None:
    """POST /v1/load_lora_adapter."""
    _check_allowed(state)
    body = await read_body(state, exchange, LoadBody)
    if not body.lora_name or not body.lora_path:
        raise bad_request("Give 'lora_name' and 'lora_path'.", "lora_name")
    if body.lora_name in state.adapters and not body.load_inplace:
        raise bad_request(f"The LoRA adapter '{body.lora_name}' is already loaded.", "lora_name")
    await add_adapter(state, LoRARequest(body.lora_name, body.lora_path))
    await exchange.answer(200, f"Success: LoRA adapter '{body.lora_name}' added successfully.".encode(), _TEXT)


async def unload_adapter(state: ServerState, exchange: Exchange) -> None:
    """POST /v1/unload_lora_adapter."""
    _check_allowed(state)
    body = await read_body(state, exchange, UnloadBody)
    if body.lora_name not in state.adapters:
        raise ApiError(404, f"The LoRA adapter '{body.lora_name}' cannot be found.", "NotFoundError")
    await state.client.command_all("unload_adapter", adapter=body.lora_name)
    state.adapters.pop(body.lora_name, None)
    await exchange.answer(200, f"Success: LoRA adapter '{body.lora_name}' removed successfully.".encode(), _TEXT)


async def add_adapter(state: ServerState, adapter: LoRARequest) -> None:
    """Serve ``adapter`` under its name. EngineError where the engine cannot load it, or the model has the name."""
    if adapter.name in state.options.model_names:
        raise bad_request(f"'{adapter.name}' is the name of the model itself.", "lora_name")
    await state.client.command_all("load_adapter", adapter=adapter.name, path=adapter.path)
    state.adapters[adapter.name] = adapter


def _check_allowed(state: ServerState) -> None:
    """A path of this machine is given, which not every client should do."""
    if not state.options.allow_runtime_lora_updating:
        message = "Adapters are fixed here; --allow-runtime-lora-updating lets clients load and unload them."
        raise ApiError(403, message, "PermissionDeniedError")
