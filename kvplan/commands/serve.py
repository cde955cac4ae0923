"""``kvplan serve``: an OpenAI-compatible server in front of kvplan's own engine.

The options become the server's, and the server takes this process's place: signals and exit codes are its own.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.models import OptionInfo

from kvplan.commands.options.groups import given_options, shown_under, takes_groups
from kvplan.commands.options.settings import takes_settings
from kvplan.commands.options.shared import SPECULATIVE_CONFIG_HELP, Model
from kvplan.errors import UsageError
from kvplan.files import parse_json
from kvplan.settings import KNOBS, SPECULATION_PANEL, ServingSettings, option_of
from kvplan.workers.process import same_imports

SERVER_PANEL: Final = "Server"
CACHE_PANEL: Final = "KV in host memory and on disk"
DEVICE_PANEL: Final = "Device"

_SERVER_MODULE: Final = "kvplan_engine.server"
_KEY_VARIABLE: Final = "KVPLAN_API_KEY"

ENGINE_NAMES: Final = {"device_memory_bytes": "device_memory"}
"""Settings that the engine calls otherwise."""


@shown_under(SERVER_PANEL)
@dataclass(frozen=True)
class ServerOptions:
    """How clients reach the server."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="What clients call the model (repeatable). Default: MODEL.")
    ] = None
    api_key: Annotated[
        list[str] | None,
        typer.Option(help=f"Key that clients must send (repeatable). Default: ${_KEY_VARIABLE}, or none."),
    ] = None
    max_num_queued_reqs: Annotated[
        int | None, typer.Option(min=1, help="Refuse requests while so many are queued.")
    ] = None
    max_num_queued_tokens: Annotated[
        int | None, typer.Option(min=1, help="Refuse requests beyond so many queued prompt tokens.")
    ] = None
    max_body_size: Annotated[str, typer.Option(help="Largest request body, such as 32MiB.", metavar="BYTES")] = "32MiB"
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(help="Origins whose pages may use the server (repeatable, or a JSON list). Default: all."),
    ] = None
    allowed_methods: Annotated[list[str] | None, typer.Option(help="Methods that they may use. Default: all.")] = None
    allowed_headers: Annotated[list[str] | None, typer.Option(help="Headers that they may send. Default: all.")] = None
    allow_credentials: Annotated[bool, typer.Option("--allow-credentials", help="They may send cookies.")] = False
    timeout_keep_alive: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a connection waits for its next request.")
    ] = 5.0
    client_header_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a request's head may take.")] = (
        60.0
    )
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that requests in flight get after SIGTERM.")
    ] = 0.0
    lora_modules: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIR", help="A LoRA adapter, saved by PEFT, and what clients call it (repeatable)."),
    ] = None
    allow_runtime_lora_updating: Annotated[
        bool,
        typer.Option(
            "--allow-runtime-lora-updating", help="Clients may load and unload adapters: /v1/load_lora_adapter."
        ),
    ] = False
    # of vLLM's command lines: the load is always counted
    enable_server_load_tracking: Annotated[bool, typer.Option("--enable-server-load-tracking", hidden=True)] = False


@shown_under(DEVICE_PANEL)
@dataclass(frozen=True)
class OwnEngineOptions:
    """Settings that only kvplan's own engine has. None: the engine's default."""

    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None
    load_format: Annotated[str | None, typer.Option(help="auto, dummy (random weights), safetensors or gguf.")] = None
    dummy_layers: Annotated[
        str | None, typer.Option(help="With load_format dummy: full, or shared by equal layers.")
    ] = None
    model_impl: Annotated[str | None, typer.Option(help="auto, native, or transformers (its class there).")] = None
    activation_quantization: Annotated[
        str | None, typer.Option(help="int8: round what weights in few bits are multiplied with to 8 bits.")
    ] = None
    attention_backend: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, cuda_wgmma, cuda_cascade or reference.")
    ] = None
    linear_backend: Annotated[
        str | None, typer.Option(help="Dense products on a GPU: auto, torch (cuBLAS), or cuda_skinny for few rows.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Of random weights, and of requests without one.")] = None
    max_cpu_loras: Annotated[int | None, typer.Option(min=1, help="Adapters in host memory. Default: --max-loras.")] = (
        None
    )
    enable_prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Reuse cached prefixes. Default: yes.",
            rich_help_panel=CACHE_PANEL,
        ),
    ] = None
    async_scheduling: Annotated[
        bool | None,
        typer.Option(
            "--async-scheduling/--no-async-scheduling",
            help="Start a step before the last one's tokens are read. Default: on a GPU.",
        ),
    ] = None
    speculative_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help=SPECULATIVE_CONFIG_HELP,
            rich_help_panel=SPECULATION_PANEL,
        ),
    ] = None
    cudagraph_mode: Annotated[
        str | None,
        typer.Option(help="Steps that a GPU replays as graphs: full, or full_decode_only without those with prompts."),
    ] = None
    disable_custom_all_reduce: Annotated[
        bool | None,
        typer.Option(
            "--disable-custom-all-reduce/--no-disable-custom-all-reduce",
            help="Leave small sums over GPUs to NCCL. Default: no, where ours passes a comparison and a timing.",
        ),
    ] = None
    enable_pdl: Annotated[
        bool | None,
        typer.Option(
            "--enable-pdl/--no-enable-pdl",
            help="Programmatic dependent launch on new GPUs. Default: where it passes a check and a timing.",
        ),
    ] = None
    scheduling: Annotated[str | None, typer.Option(help="continuous or static (a baseline).")] = None
    kv_reservation: Annotated[str | None, typer.Option(help="paged or contiguous (a baseline).")] = None
    swap_space: Annotated[
        str | None,
        typer.Option(
            help="Host memory for the KV of preempted sequences.", metavar="BYTES", rich_help_panel=CACHE_PANEL
        ),
    ] = None
    preemption_mode: Annotated[
        str | None, typer.Option(help="auto, recompute or swap.", rich_help_panel=CACHE_PANEL)
    ] = None
    kv_host_cache_bytes: Annotated[
        str | None,
        typer.Option(
            "--kv-host-cache", help="Host memory for evicted blocks.", metavar="BYTES", rich_help_panel=CACHE_PANEL
        ),
    ] = None
    kv_disk_cache_dir: Annotated[
        str | None, typer.Option(help="Directory for blocks that host memory evicts.", rich_help_panel=CACHE_PANEL)
    ] = None
    kv_disk_cache_bytes: Annotated[
        str | None,
        typer.Option("--kv-disk-cache", help="Most bytes kept there.", metavar="BYTES", rich_help_panel=CACHE_PANEL),
    ] = None
    kv_load_policy: Annotated[str | None, typer.Option(help="auto or always.", rich_help_panel=CACHE_PANEL)] = None


@takes_groups
@takes_settings(
    "dtype",
    "max_model_len",
    "gpu_memory_utilization",
    "block_size",
    "kv_cache_dtype",
    "quantization",
    "group_size",
    "enforce_eager",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "device_memory_bytes",
    helps={
        "data_parallel_size": "Engines, each with the whole model and requests of its own.",
        "enable_expert_parallel": "Whole experts on each rank of an engine, not a slice of every expert.",
        "device_memory_bytes": "Memory of each engine's device, such as 4GiB. Default: all of a GPU's.",
    },
)
def serve(model: Model, server: ServerOptions, settings: ServingSettings, engine: OwnEngineOptions) -> None:
    """Serve a model behind OpenAI's API with kvplan's own engine."""
    from kvplan.sweeps.drafting import read_drafting
    from kvplan.units import parse_bytes

    modules = _lora_modules(server.lora_modules or [])
    chosen = {**_engine_settings(settings), **given_options(engine)}
    if engine.speculative_config is not None:
        chosen["speculative_config"] = read_drafting(engine.speculative_config)
    if modules or settings.lora_slots is not None:
        chosen["enable_lora"] = True
    options = {
        "model": model,
        "settings": chosen,
        "data_parallel_size": settings.data_parallel_size,
        "lora_modules": modules,
        "allow_runtime_lora_updating": server.allow_runtime_lora_updating,
        "host": server.host,
        "port": server.port,
        "served_model_names": server.served_model_name or [],
        "api_keys": server.api_key or _keys_of_environment(),
        "max_num_queued_reqs": server.max_num_queued_reqs,
        "max_num_queued_tokens": server.max_num_queued_tokens,
        "max_body_bytes": parse_bytes(server.max_body_size),
        "shutdown_timeout": server.shutdown_timeout,
        "allowed_origins": _words("--allowed-origins", server.allowed_origins),
        "allowed_methods": _words("--allowed-methods", server.allowed_methods),
        "allowed_headers": _words("--allowed-headers", server.allowed_headers),
        "allow_credentials": server.allow_credentials,
        "timeout_keep_alive": server.timeout_keep_alive,
        "client_header_timeout": server.client_header_timeout,
        "option_names": option_names(),
    }
    become_server(options)


def _engine_settings(settings: ServingSettings) -> dict[str, Any]:
    """Return the settings that were given, under the engine's names."""
    given = {name: getattr(settings, name) for name, knob in KNOBS.items() if getattr(settings, name) != knob.default}
    given.pop("data_parallel_size", None)  # the server's: it starts the engines
    return {ENGINE_NAMES.get(name, name): value for name, value in given.items()}


def option_names() -> dict[str, str]:
    """What the engine's and the server's settings are called on the command line."""
    found = {}
    for name, parameter in inspect.signature(serve).parameters.items():
        for option in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(option, OptionInfo):
                # typer takes the first spelling for a default, as Option() had one there before Annotated
                declared = (option.default, *(option.param_decls or ()), option_of(name))
                spelling = next(each for each in declared if isinstance(each, str) and each.startswith("--"))
                found[ENGINE_NAMES.get(name, name)] = spelling.partition("/")[0]
    return found


def _lora_modules(words: Sequence[str]) -> dict[str, str]:
    """``["sql=adapters/sql"]``, or as JSON with "name" and "path"; UsageError for anything else."""
    found = {}
    for word in words:
        name, _, path = word.partition("=")
        if word.startswith("{"):
            try:
                given = parse_json(word)
                name, path = str(given["name"]), str(given["path"])
            except (ValueError, KeyError, TypeError):
                name = ""
        if not name or not path:
            raise UsageError(
                f"--lora-modules '{word}' is not NAME=DIR.", hint="for example --lora-modules sql=adapters/sql"
            )
        found[name] = path
    return found


def _words(option: str, given: Sequence[str] | None) -> list[str]:
    """``["a", "b"]``, or as vLLM has it one JSON list; all where nothing is given."""
    if given is None:
        return ["*"]
    words: list[str] = []
    for word in given:
        if not word.startswith("["):
            words.append(word)
            continue
        try:
            listed = json.loads(word)
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise UsageError(f"{option} '{word}' is not a list of texts.", hint=f"for example {option} '[\"*\"]'")
        words += listed
    return words


def _keys_of_environment() -> list[str]:
    key = os.environ.get(_KEY_VARIABLE)
    return [key] if key else []


def become_server(options: dict[str, Any]) -> NoReturn:
    """Replace this process by the server, which reads ``options`` from its stdin: keys are on no command line there."""
    read, write = os.pipe()
    data = json.dumps(options).encode()
    assert len(data) < 65536, "a pipe holds no more"
    os.write(write, data)
    os.close(write)
    os.dup2(read, 0)
    os.execve(sys.executable, [sys.executable, "-m", _SERVER_MODULE], same_imports())
