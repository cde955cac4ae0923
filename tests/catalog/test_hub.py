"""The hub: config.json and safetensors headers over HTTP from a stand-in server, and refusals without a network."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from checkpoints import write_file
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from kvplan.catalog.hub import is_repository_name

ROOT = Path(__file__).parents[2]
CONFIG = json.loads((ROOT / "profiles/models/gpt2.json").read_text())["config"]
_HEADER = json.dumps({"wte": {"dtype": "F32", "shape": [124_439_808], "data_offsets": [0, 497_759_232]}}).encode()
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    # The header alone: a client that asked for the weights behind it would get nothing.
    "model.safetensors": struct.pack("<Q", len(_HEADER)) + _HEADER,
}
COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as one small public repository and one gated one need."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        if self.path.startswith("/gated/"):
            self._send(403, b"", {"X-Error-Code": "GatedRepo"}, with_body=with_body)
            return
        if self.path.startswith("/api/models/small/model"):
            names = [{"rfilename": name} for name in FILES]
            counted = {"parameters": {"F32": 124_439_808}, "total": 124_439_808}
            about = {"id": "small/model", "sha": COMMIT, "siblings": names, "safetensors": counted}
            body = json.dumps(about).encode()
            self._send(200, body, {"Content-Type": "application/json"}, with_body=with_body)
            return
        name = self.path.rsplit("/", 1)[-1]
        if not self.path.startswith("/small/model/resolve/") or name not in FILES:
            code = "EntryNotFound" if self.path.startswith("/small/model/") else "RepoNotFound"
            self._send(404, b"", {"X-Error-Code": code}, with_body=with_body)
            return
        content = FILES[name]
        headers = {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if wanted and with_body:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            content = content[int(first) : int(last) + 1 if last else None]
            self._send(206, content, headers, with_body=True)
            return
        self._send(200, content, headers, with_body=with_body)

    def _send(self, code: int, body: bytes, headers: dict[str, str], *, with_body: bool) -> None:
        self.send_response(code)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Silent: the test's own output is what matters."""


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


_PROGRAMS = {
    "huggingface_hub": ["-m", "kvplan"],
    "plain": [
        "-c",
        "import sys; sys.modules['huggingface_hub'] = None\nfrom kvplan.cli import main; sys.exit(main(sys.argv[1:]))",
    ],
}


@pytest.fixture(params=_PROGRAMS)
def client(request: pytest.FixtureRequest) -> str:
    """What asks the hub: huggingface_hub, or kvplan itself in an install without it."""
    return request.param


def estimate(
    model: str, home: Path, endpoint: str, client: str = "huggingface_hub", **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {
        key: value for key, value in os.environ.items() if "proxy" not in key.lower() and not key.startswith("HF_")
    }
    settings = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "KVPLAN_CACHE_DIR": str(home / "kvplan"), **environment}
    return subprocess.run(
        [sys.executable, *_PROGRAMS[client], "estimate", model, "--json", "--gpu", "l4"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**clean, **settings},
    )


def test_a_hub_model_is_read_and_kept(hub, tmp_path, client):
    done = estimate("small/model", tmp_path, hub, client)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["model"]["num_parameters"] == 124_439_808
    assert not any("headers hold" in sentence for sentence in answer["assumptions"])
    assert (tmp_path / "kvplan" / "hub" / "small--model.json").is_file()
    again = estimate("small/model", tmp_path, hub, client, HF_HUB_OFFLINE="1")
    assert again.returncode == 0 and json.loads(again.stdout)["model"] == answer["model"]


def test_a_checkpoint_that_lies_in_the_cache_gives_its_weights(hub, tmp_path):
    assert estimate("small/model", tmp_path, hub).returncode == 0
    (snapshot,) = (tmp_path / "hub" / "models--small--model" / "snapshots").iterdir()
    tensors = {f"h.{layer}.mlp.c_fc.weight": ("F16", (768, 3072)) for layer in range(12)}
    write_file(snapshot / "model.safetensors", tensors | {"wte.weight": ("F16", (50257, 768))})
    found = json.loads(estimate("small/model", tmp_path, hub, HF_HUB_OFFLINE="1").stdout)["model"]
    assert found["weights_from"] == "checkpoint"
    assert found["weight_bytes"] == 2 * (12 * 768 * 3072 + 50257 * 768)
    assert found["dtype"] == "float16"


def test_gated_and_missing_models_are_refused(hub, tmp_path, client):
    gated = estimate("gated/model", tmp_path, hub, client)
    assert gated.returncode == 1 and "is gated" in gated.stderr and "HF_TOKEN" in gated.stderr
    missing = estimate("nobody/nothing", tmp_path, hub, client)
    assert missing.returncode == 2 and "has no model 'nobody/nothing'" in missing.stderr


def test_without_a_network_the_hint_says_what_to_pass(tmp_path, client):
    done = estimate("small/model", tmp_path, "http://127.0.0.1:9", client, HF_HUB_OFFLINE="0")
    assert done.returncode == 1 and done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert "is unreachable" in error and "config.json" in hint


@pytest.mark.parametrize(
    "name", ["a/b--c", "a/b..c", "a--b/c", "a/b-", "a/b.", "a./b", "a/b.git", "ä/b", "a/" + "b" * 97]
)
def test_a_name_that_the_hub_cannot_have_is_an_unknown_model(name: str, said_by: Callable[..., str]) -> None:
    with pytest.raises(HFValidationError):
        validate_repo_id(name)
    assert not is_repository_name(name)
    assert said_by("estimate", name).startswith(f"error: Unknown model '{name}'")


@pytest.mark.parametrize("name", ["a/b", "Qwen/Qwen2.5-7B_x", "meta-llama/Llama-3.1-8B", "0/1", "a/" + "b" * 96])
def test_a_name_that_the_hub_can_have_is_one(name: str) -> None:
    validate_repo_id(name)
    assert is_repository_name(name)
