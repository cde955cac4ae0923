"""Starting: what the API process loads, wrong options, what cannot be served, and the options of ``kvplan serve``."""

from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess, decoded_events

from kvplan.commands.serve import ENGINE_NAMES, option_names, serve
from kvplan_engine.config import knobs
from kvplan_engine.errors import EngineError
from kvplan_engine.server.engine_process.loading import load
from kvplan_engine.server.messages import LoadModel, Stop, frame
from kvplan_engine.server.options import in_options


def _started(options: dict[str, object]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-m", "kvplan_engine.server"],
        input=json.dumps(options),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        check=False,
    )


KEY = {"authorization": "Bearer secret-key"}
_COMMAND = """
--port 0 --load-format dummy --device cpu --device-memory 256MiB --block-size 32 --max-model-len 128
--allowed-origins ["https://a.example"] --timeout-keep-alive 7 --client-header-timeout 9
--enable-server-load-tracking --no-enable-prefix-caching --served-model-name one --api-key secret-key
"""


@pytest.fixture(scope="module")
def commanded(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`kvplan serve` of a model that has neither weights nor a tokenizer; a signal ends it."""
    bare = tmp_path_factory.mktemp("bare")
    (bare / "config.json").write_bytes((model_path / "config.json").read_bytes())
    with ServerProcess.of_command(["-m", "kvplan", "serve", str(bare), *_COMMAND.split()]) as server:
        yield server
        assert server.end() == 0, "".join(server.lines)


def test_the_api_process_never_loads_torch(commanded: ServerProcess) -> None:
    """Of the running process, after it has answered."""
    answer = commanded.post("/v1/completions", {"prompt": [3, 4], "max_tokens": 2}, KEY)
    assert answer.status == 200, answer.body
    maps = Path(f"/proc/{commanded.process.pid}/maps").read_text(encoding="utf-8")
    assert "uvloop" in maps, "the maps of another process"
    assert "torch" not in maps
    engine = commanded.request("GET", "/server_info", headers=KEY).json["engine_pid"]
    assert "torch" in Path(f"/proc/{engine}/maps").read_text(encoding="utf-8")


def test_every_setting_of_the_engine_is_an_option() -> None:
    names = {ENGINE_NAMES.get(name, name) for name in inspect.signature(serve).parameters}
    assert knobs().keys() - names == {"weight_bytes", "rank_accounts"}, "for load_format none, which answers nobody"


@pytest.mark.parametrize(
    ("options", "sentence", "code"),
    [
        ({"model": "gpt2", "port": 70000}, "error: the port must lie in [0, 65535], got 70000.", 2),
        ({"model": "gpt2", "prot": 1}, "error: the server's options are not valid:", 2),
        ({"model": "nosuch/model", "port": 0}, "error: 'nosuch/model' is not a local path", 1),
        (
            {
                "model": "gpt2",
                "port": 0,
                "settings": {"tensor_parallel_size": 5, "device": "cpu", "load_format": "dummy"},
                "option_names": {"tensor_parallel_size": "--tensor-parallel-size"},
            },
            "error: 12 attention heads cannot be divided over 5 ranks.\n"
            "hint: choose a --tensor-parallel-size that divides 12\n",
            2,
        ),
        (
            {"model": "gpt2", "port": 0, "settings": {"seed": 2**63}},
            "error: seed must fit 64 bits, got 9223372036854775808.",
            2,
        ),
        ({"model": "gpt2", "port": 0, "host": "x" * 70}, "that is not the name of a host", 1),
        ({"model": "gpt2", "port": 0, "host": "999.1.1.1"}, "error: the server cannot listen on '999.1.1.1'", 1),
    ],
)
def test_what_cannot_start_is_one_sentence(options: dict[str, object], sentence: str, code: int) -> None:
    done = _started(options)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_said_of_settings_names_options() -> None:
    names = option_names()
    assert set(names) >= knobs().keys() - {"model", "weight_bytes", "rank_accounts"}
    for python, words in (
        ("set load_format='dummy', or leave dummy_layers out", "set --load-format dummy, or leave --dummy-layers out"),
        ("quantization='none' widens them", "--quantization none widens them"),
        ("use max_model_len=1024 or less", "use --max-model-len 1024 or less"),
        ("group_size 64, and quantization is 'auto'.", "--group-size 64, and quantization is 'auto'."),
        ("quantization 'int4' is made", "--quantization 'int4' is made"),
        ("set enable_prefix_caching=True", "set --enable-prefix-caching"),
        ("async_scheduling=False does", "--no-async-scheduling does"),
        ("device_memory 4 GiB, kv_host_cache_bytes", "--device-memory 4 GiB, --kv-host-cache"),
        ("give --load-format dummy; max_model_length", "give --load-format dummy; max_model_length"),
    ):
        assert in_options(python, names) == words
    assert in_options("lower swap_space", {}) == "lower swap_space"


def test_an_engine_that_cannot_load_says_why(model_path: Path, tmp_path: Path) -> None:
    """In this process; what the server makes of it is above."""
    with pytest.raises(EngineError, match=r"^unknown setting block_sise\.$"):
        load(LoadModel("gpt2", {"block_sise": 3}))
    (tmp_path / "config.json").write_bytes((model_path / "config.json").read_bytes())
    with pytest.raises(EngineError, match="there are no weights for") as random_weights:
        load(LoadModel(str(tmp_path), {"device": "cpu", "device_memory": "256MiB"}))
    assert random_weights.value.hint is not None
    assert random_weights.value.hint.startswith("give a directory")


def test_an_engine_that_is_told_to_end_before_it_has_begun_says_nothing() -> None:
    """As when a signal arrives while it starts: both messages are there when it looks."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame(LoadModel("nosuch/model", {})) + frame(Stop()))
        path = os.pathsep.join(entry for entry in sys.path if entry)
        done = subprocess.run(
            [sys.executable, "-m", "kvplan_engine.server.engine_process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            timeout=300,
            check=False,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_taken_port_is_said_before_the_model_is_loaded(commanded: ServerProcess) -> None:
    done = _started({"model": "nosuch/model", "port": commanded.port})
    assert done.returncode == 1
    assert f"port {commanded.port} of 127.0.0.1 cannot be used" in done.stderr


def test_without_a_tokenizer_prompts_are_token_ids(commanded: ServerProcess) -> None:
    """Random weights that were asked for are served, to measure speed."""
    fields = {"max_tokens": 4, "ignore_eos": True, "stream": True}
    answer = commanded.post("/v1/completions", {"prompt": [3, 4, 5], **fields, "return_token_ids": True}, KEY)
    *events, done = decoded_events(answer.body)
    assert [len(event["choices"][0]["token_ids"]) for event in events] == [1] * 4
    answer = commanded.post("/v1/completions", {"prompt": [3, 4, 5], **fields}, KEY)
    *events, done = decoded_events(answer.body)
    assert [event["choices"][0]["text"] for event in events] == [""] * 4
    assert done == "[DONE]"
    refused = commanded.post("/v1/completions", {"prompt": "text"}, KEY)
    assert refused.status == 400
    assert "Prompts must be token ids" in refused.error["message"]
    chat = commanded.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, KEY)
    assert chat.status == 400


def test_the_command_becomes_the_server(commanded: ServerProcess) -> None:
    """Its options arrive, and keys are on no command line of the server's."""
    info = commanded.request("GET", "/server_info", headers=KEY).json
    config = info["config"]
    assert (config["device_memory"], config["block_size"]) == (256 * 1024**2, 32)
    assert (config["max_model_len"], config["enable_prefix_caching"]) == (128, False)
    assert b"secret-key" not in Path(f"/proc/{commanded.process.pid}/cmdline").read_bytes()
    assert commanded.get("/v1/models").status == 401
    for origin, allowed in (("https://a.example", "https://a.example"), ("https://b.example", None)):
        answer = commanded.request("GET", "/health", headers={"origin": origin})
        assert answer.headers.get("access-control-allow-origin") == allowed


@pytest.mark.parametrize("word", ["[1]", "[", '["a", null]'])
def test_origins_that_are_no_list_of_texts_are_refused(said_by: Callable[..., str], word: str) -> None:
    assert "is not a list of texts.\nhint: for example --allowed-origins" in said_by(
        "serve", "gpt2", "--allowed-origins", word
    )


def test_a_missing_package_is_one_sentence_with_its_extra(tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError(\"No module named 'uvloop'\", name='uvloop')\n")
    path = os.pathsep.join([str(tmp_path), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", "serve", "gpt2", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "error: the package 'uvloop' is missing.\nhint: pip install 'kvplan[serve]'\n"


@pytest.mark.parametrize("word", ["sql", "=adapters/sql", '{"name": "sql"}'])
def test_an_adapter_without_name_or_directory_is_refused(said_by: Callable[..., str], word: str) -> None:
    assert "is not NAME=DIR.\nhint: for example --lora-modules" in said_by("serve", "gpt2", "--lora-modules", word)
