"""A real vLLM server of a tiny model, asked for one prompt after the other: what its prefix cache finds of each."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fleet_checks.trace import longest, prompt_token_ids
from kvplan.catalog.models import resolve_model
from kvplan.engines.host import write_dummy_model
from kvplan.engines.interface import StartOrder
from kvplan.engines.server import EngineServer
from kvplan.engines.vllm.adapter import VllmAdapter
from kvplan.errors import KvplanError
from kvplan.fleet.requests import FleetRequest
from kvplan.metrics.http import PersistentConnection
from kvplan.metrics.source import MetricsSource
from kvplan.runs.trials import TrialSettings

_OK: Final = 200
_START_SECONDS: Final = 600.0
_ANSWER_SECONDS: Final = 120.0
_VOCABULARY: Final = 32_000
_TINY: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def served_hits(requests: Sequence[FleetRequest], python: str, block_size: int, num_blocks: int) -> list[int]:
    """Return the prompt tokens of each request that the server of ``num_blocks`` blocks found
    (``vllm:prefix_cache_hits_total``), each asked when the one before it had ended. KvplanError where it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(_TINY))
        model = write_dummy_model(resolve_model(str(folder)), folder)
        settings = TrialSettings(
            gpu_memory_utilization=0.1,
            max_num_seqs=16,
            block_size=block_size,
            max_model_len=longest(requests) + 8,
            max_num_batched_tokens=2048,
        )
        # One block of vLLM's stands for those that are not there.
        options = (f"num-gpu-blocks-override={num_blocks + 1}", "kv-cache-memory-bytes=500000000", "enforce-eager=")
        order = StartOrder(str(model), settings, 0, folder, load_format="dummy")
        server = EngineServer.start(VllmAdapter(python, arguments=options), order, folder / "log.txt")
        try:
            if server.wait_until_ready(_START_SECONDS).seconds is None:
                raise KvplanError(f"vLLM did not start: {server.log()[-800:]}", hint="has that Python vLLM for CPUs?")
            return _hits(server, requests)
        finally:
            server.stop()


def _hits(server: EngineServer, requests: Sequence[FleetRequest]) -> list[int]:
    found, before = [], 0
    with MetricsSource(server.url) as source:
        connection = PersistentConnection(source.address, timeout_seconds=_ANSWER_SECONDS)
        for each in requests:
            body = {
                "model": server.model_name,
                "prompt": prompt_token_ids(each, _VOCABULARY),
                "max_tokens": each.num_output_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
            }
            answer = connection.ask("POST", "/v1/completions", body)
            if answer.status != _OK:
                raise KvplanError(f"Request {each.number} was refused: {answer.text[:200]}", hint=server.log()[-300:])
            hits = source.read().prefix_cache_hits
            assert hits is not None, "vLLM counts them"
            found.append(int(hits) - before)
            before = int(hits)
        connection.close()
    return found
