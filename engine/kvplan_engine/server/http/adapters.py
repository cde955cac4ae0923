"""Adapters as models: their names, and loading and unloading them at run time, with vLLM's paths and answers."""

from __future__ import annotations

import msgspec

from kvplan_engine.requests.adapter import LoRARequest
from kvplan_engine.server.http.bodies import read_body
from kvplan_engine.server.http.exchange import Exchange
from kvplan_engine.server.http.state import ServerState
from kvplan_engine.server.openai.errors import ApiError, bad_request

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
