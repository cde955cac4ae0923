"""HTTP requests to a real server: bodies and heads that are damaged, or say what nobody expects.

A fault is a 5xx, an answer that is due and does not come, a traceback in the server's log, and at the end a block that
is not free again. An answer is due once a request is complete, or cannot be one.
"""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httptools
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fuzz.harness import Fault, Target
from fuzz.mutations import deep_json, mutate_bytes, mutate_json

_START_SECONDS = 120.0
_ANSWER_SECONDS = 8.0
_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 258,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "bos_token_id": 256, "eos_token_id": 257,
    "tie_word_embeddings": True, "torch_dtype": "float32",
}  # fmt: skip
_TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"
)
_SETTINGS = {
    "device": "cpu", "device_memory": "256MiB", "load_format": "dummy", "dtype": "float32", "max_num_seqs": 8,
}  # fmt: skip

_COMPLETION = {
    "prompt": "the cache", "max_tokens": 4, "n": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
    "seed": 3, "stop": ["x", "yz"], "logprobs": 2, "echo": False, "stream": False, "presence_penalty": 0.5,
    "logit_bias": {"65": 1.5}, "stop_token_ids": [70], "min_tokens": 1, "cache_salt": "a", "user": "me",
    "request_id": "r-1", "ignore_eos": True, "prompt_logprobs": 1, "repetition_penalty": 1.1, "return_token_ids": True,
}  # fmt: skip
_CHAT = {
    "model": "small", "messages": [{"role": "system", "content": "Be brief."},
                                   {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "max_completion_tokens": 4, "logprobs": True, "top_logprobs": 3, "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "chat_template_kwargs": {"x": 1},
    "metadata": {"a": "b"}, "truncate_prompt_tokens": 20, "n": 1,
}  # fmt: skip
_DOCUMENTS: tuple[tuple[int, str, str, dict[str, Any]], ...] = (
    (10, "POST", "/v1/completions", _COMPLETION),
    (6, "POST", "/v1/completions", {"prompt": [65, 66, 67], "max_tokens": 3, "stream": True}),
    (4, "POST", "/v1/completions", {"prompt": [[65, 66], [67]], "max_tokens": 0, "echo": True, "logprobs": 1}),
    (10, "POST", "/v1/chat/completions", _CHAT),
    (3, "POST", "/tokenize", {"prompt": "the", "add_special_tokens": True, "return_token_strs": True}),
    (2, "POST", "/tokenize", {"messages": _CHAT["messages"], "add_generation_prompt": True}),
    (3, "POST", "/detokenize", {"tokens": [65, 66], "model": "small"}),
    (1, "PATCH", "/v1/runtime_config?timeout=1", {"max_num_seqs": 8, "max_model_len": 128}),
    (1, "POST", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/b"}),
    (1, "POST", "/reset_prefix_cache", {}),
    (1, "GET", "/v1/models/small", {}),
)
"""How often, where to, and what is damaged."""


@dataclass(frozen=True)
class _Server:
    port: int
    log: Path
    process: subprocess.Popen[bytes]


@contextmanager
def open_target() -> Iterator[Target[bytes]]:
    """Start a server of a tiny model with random weights, for all cases."""
    with tempfile.TemporaryDirectory() as folder:
        server = _start(Path(folder))
        try:
            yield Target(_make_case, lambda case: _try_case(server, case), lambda: _check_all(server))
        finally:
            server.process.terminate()
            server.process.wait(60)


def _start(folder: Path) -> _Server:
    model, log = folder / "model", folder / "log"
    _write_model(model)
    options = {
        "model": str(model), "port": 0, "settings": _SETTINGS, "served_model_names": ["small"],
        "max_body_bytes": 1 << 20,
    }  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[:0] = {[*filter(None, sys.path)]!r}; {_RUN}"],
            stdin=subprocess.PIPE,
            stderr=output,
        )
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(json.dumps(options).encode())
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r" at http://127\.0\.0\.1:(\d+)", log.read_text(encoding="utf-8"))
        if found is not None:
            return _Server(int(found[1]), log, process)
        time.sleep(0.05)
    process.kill()
    raise Fault(f"the server did not start: {log.read_text(encoding='utf-8')}")


_RUN = (
    "import os, runpy; os.environ['PYTHONPATH'] = os.pathsep.join(sys.path); os.environ['OMP_NUM_THREADS'] = '1'; "
    "runpy.run_module('kvplan_engine.server', run_name='__main__')"
)


def _write_model(folder: Path) -> None:
    """A config, and a tokenizer whose tokens are the 256 bytes and two special ones."""
    folder.mkdir()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "<s>", "</s>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    kinds = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    for name, content in (("config.json", _CONFIG), ("tokenizer_config.json", {**kinds, "chat_template": _TEMPLATE})):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


# ---- cases


def _make_case(rng: random.Random) -> bytes:
    """A request as it is sent: mostly its body is damaged, sometimes anything of it."""
    _, method, path, document = rng.choices(_DOCUMENTS, [weight for weight, *_ in _DOCUMENTS])[0]
    kind = rng.random()
    if kind < 0.5:
        body = _encoded(mutate_json(document, rng, most_changes=rng.choice((1, 1, 2, 4))))
    elif kind < 0.6:
        body = mutate_bytes(json.dumps(document).encode(), rng)
    elif kind < 0.62:
        body = deep_json(rng)
    else:
        body = json.dumps(document).encode()
    request = _request(method, path, body, is_chunked=rng.random() < 0.2)
    return mutate_bytes(request, rng) if kind >= 0.62 else request


def _encoded(document: Any) -> bytes:
    """JSON with what it has no way to say: NaN, and halves of characters."""
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _request(method: str, path: str, body: bytes, *, is_chunked: bool) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nx-request-id: r-1\r\n"
    if is_chunked:
        return head.encode() + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
            max(1, len(body)),
            body or b" ",
        )
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)


# ---- trying them


class _Reader:
    """What httptools says of a message: whether its head, and whether all of it, has come."""

    def __init__(self) -> None:
        self.has_head = self.is_complete = False

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_message_complete(self) -> None:
        self.is_complete = True


def _is_answer_due(request: bytes) -> bool:
    """Whether ``request`` is complete, or no request."""
    reader = _Reader()
    try:
        httptools.HttpRequestParser(reader).feed_data(request)
    except httptools.HttpParserUpgrade:
        return reader.is_complete
    except httptools.HttpParserError:
        return True
    return reader.is_complete


def _try_case(server: _Server, request: bytes) -> str:
    is_due = _is_answer_due(request)
    with socket.create_connection(("127.0.0.1", server.port), timeout=_ANSWER_SECONDS) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # it may be refused before its end
            connection.sendall(request)
        if not is_due:
            return "incomplete"
        return _outcome(connection, is_head=request.startswith(b"HEAD "))


def _outcome(connection: socket.socket, *, is_head: bool) -> str:
    """The status of the answer; Fault where there is none, or not all of it."""
    reader, status = _Reader(), 0
    parser = httptools.HttpResponseParser(reader)
    while not reader.is_complete and not (reader.has_head and is_head):
        try:
            data = connection.recv(1 << 16)
        except (TimeoutError, ConnectionResetError) as problem:
            raise Fault(f"{type(problem).__name__} instead of an answer, after status {status}") from None
        if not data:
            raise Fault(f"the connection was closed before an answer was complete, after status {status}")
        parser.feed_data(data)
        status = parser.get_status_code() if reader.has_head else 0
        if b'"error"' in data and b'"code":5' in data:
            raise Fault(f"an error within a stream: {data[-300:]!r}")
    if status >= 500:
        raise Fault(f"status {status}: {data[-300:]!r}")
    return str(status)


def _check_all(server: _Server) -> None:
    """After the last case nothing runs, all blocks are free, and the log has no traceback."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/server_info", timeout=_ANSWER_SECONDS) as answer:
            stats = json.load(answer)["stats"]
        num_left = stats["num_requests_running"] + stats["num_requests_waiting"] + stats["num_used_blocks"]
        if not num_left and stats["num_free_blocks"] == stats["num_blocks"]:
            break
        if time.monotonic() > deadline:
            raise Fault(f"requests or blocks are left over: {stats}")
        time.sleep(0.1)
    log = server.log.read_text(encoding="utf-8")
    if "Traceback" in log:
        raise Fault(f"a traceback in the server's log: {log[-2000:]}")
