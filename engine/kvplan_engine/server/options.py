"""What the server is started with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from kvplan_engine.errors import EngineError


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """settings: of each engine, see EngineConfig; amounts of memory may be text such as "4GiB". data_parallel_size:
    engines, each with the whole model.

    served_model_names: what clients may call the model, its own name if empty. lora_modules: directories of adapters by
    the names that clients call them. allow_runtime_lora_updating: clients may load and unload adapters. api_keys: any
    of them lets a client in; without keys nobody needs one. max_num_queued_reqs, max_num_queued_tokens: beyond them
    requests are refused; None for no limit. max_body_bytes: of a request. shutdown_timeout: seconds that requests in
    flight get at the end. dead_engine_seconds: how long a server whose engine has died goes on answering 503, before it
    ends and its supervisor restarts it. dead_client_seconds: when a connection is closed whose client neither reads
    what it is sent nor answers the kernel's probes. timeout_keep_alive: seconds for which a connection waits for its
    next request; client_header_timeout: for the head of one, from its first byte or the connection's beginning on.
    allowed_origins, allowed_methods, allowed_headers, allow_credentials: for pages of other servers.
    port 0: one that is free. option_names: of settings that are options of a command line, for what is said there.
    """

    model: str
    settings: dict[str, Any] = {}
    data_parallel_size: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    lora_modules: dict[str, str] = {}
    allow_runtime_lora_updating: bool = False
    api_keys: tuple[str, ...] = ()
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_body_bytes: int = 32 * 1024 * 1024
    shutdown_timeout: float = 0.0
    dead_engine_seconds: float = 2.0
    dead_client_seconds: int = 60
    timeout_keep_alive: float = 5.0
    client_header_timeout: float = 60.0
    allowed_origins: tuple[str, ...] = ("*",)
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    option_names: dict[str, str] = {}

    def __post_init__(self) -> None:
        for good, text in (
            (0 <= self.port <= 65535, f"the port must lie in [0, 65535], got {self.port}"),
            (self.data_parallel_size >= 1, f"data_parallel_size must be at least 1, got {self.data_parallel_size}"),
            (self.max_body_bytes >= 1, f"max_body_bytes must be at least 1, got {self.max_body_bytes}"),
            (self.dead_client_seconds >= 1, f"dead_client_seconds must be at least 1, got {self.dead_client_seconds}"),
            (self.timeout_keep_alive > 0, f"timeout_keep_alive must be positive, got {self.timeout_keep_alive:g}"),
            (
                self.client_header_timeout > 0,
                f"client_header_timeout must be positive, got {self.client_header_timeout:g}",
            ),
            (self.shutdown_timeout >= 0, f"shutdown_timeout must not be negative, got {self.shutdown_timeout:g}"),
            (_is_limit(self.max_num_queued_reqs), "max_num_queued_reqs must be at least 1"),
            (_is_limit(self.max_num_queued_tokens), "max_num_queued_tokens must be at least 1"),
            (all(self.api_keys), "an API key must not be empty"),
            (all(self.served_model_names), "a served model name must not be empty"),
            (all((*self.lora_modules, *self.lora_modules.values())), "an adapter needs a name and a directory"),
            (not self.lora_modules.keys() & set(self.model_names), "an adapter must not have the model's name"),
        ):
            if not good:
                raise EngineError(f"{text}.")

    @property
    def model_names(self) -> tuple[str, ...]:
        """The first is the one that answers and metrics carry."""
        return self.served_model_names or (self.model,)


def _is_limit(limit: int | None) -> bool:
    return limit is None or limit >= 1


def read_options(text: bytes) -> ServerOptions:
    """From JSON; EngineError when it is not ServerOptions."""
    try:
        return msgspec.json.decode(text, type=ServerOptions)
    except msgspec.DecodeError as problem:
        raise EngineError(f"the server's options are not valid: {problem}.") from None


# Sentences that name settings as Python does, in the words of a command line.


_VALUE = r"(?P<value>=(?:'[^']*'|[-.\w]*\w))"


def in_options(text: str, option_names: Mapping[str, str]) -> str:
    """``text`` with ``--tensor-parallel-size 1`` for ``tensor_parallel_size=1``, and so on for all ``option_names``.

    A name without an underscore is a word like any other where no value follows it.
    """
    if not option_names:
        return text
    names = sorted(option_names, key=len, reverse=True)
    joined, words = "|".join(name for name in names if "_" in name), "|".join(names)
    pattern = rf"(?<![-\w])(?:(?P<set>{words}){_VALUE}|(?P<quoted>{words})(?= ')|(?P<name>{joined}))(?!\w)"
    return re.sub(pattern, lambda match: _option(match, option_names), text)


def _option(match: re.Match[str], option_names: Mapping[str, str]) -> str:
    if match["set"] is None:
        return option_names[match["quoted"] or match["name"]]
    option, value = option_names[match["set"]], match["value"][1:].strip("'")
    if value == "False":
        return "--no-" + option.removeprefix("--")
    return option if value == "True" else f"{option} {value}"
