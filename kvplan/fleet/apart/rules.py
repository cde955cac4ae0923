"""How engines hand a prompt that one replica has read over to another that decodes.

vllm     (0.32.0, vllm/distributed/kv_transfer/kv_connector/v1/nixl/) The proxy sends the prompt to a prefill replica
         with ``max_tokens`` 1, and what that answered to a decode replica (tests/v1/kv_connector/nixl_integration/
         toy_proxy_server.py). The decode replica looks the prompt up in its own cache, reserves blocks for all of it,
         and pulls what it lacks, whole, between its steps (pull_scheduler.py, get_num_new_matched_tokens;
         v1/core/sched/scheduler.py, WAITING_FOR_REMOTE_KVS). It then computes the last token of the prompt again and
         samples the answer's first token itself (_update_waiting_for_remote_kv). The prefill replica keeps its blocks
         until they were read (request_finished: delay_free_blocks).
sglang   (python/sglang/srt/disaggregation/ at 0035ca42) The router sends a request to both replicas. The decode replica
         reserves room for the prompt and ``num_reserved_decode_tokens`` more before the prompt is read (decode.py,
         DecodePreallocQueue); until then it waits in the prefill replica's bootstrap queue (prefill.py). Each chunk is
         sent as its step has ended, in whole pages (send_kv_chunk). The first token comes along with the last of them,
         and the decode replica goes on with the second one (PrebuiltExtendBatch).
dynamo   (1.2, docs/components/router: Disaggregated Serving; lib/llm/src/kv_router/prefill_router/mod.rs at 000bf407)
         Its router asks a prefill worker first and then a decode worker, whose overlap does not count; vLLM's workers
         move KV by NixlConnector, as above. What it decides by lengths (conditional disaggregation) is off by default.

Not counted: the handshake of two replicas that meet for the first time, and an engine's own work for a transfer
(descriptors, notifications), of which nobody publishes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class HandOver:
    """The rules of one engine.

    reserves_first: the decode replica has room for a prompt before that is read. sends_chunks: what a step has read is
    sent while the next one runs; otherwise all is moved when the prompt has been read. samples_first: the decode
    replica samples the first token of the answer, after it has computed the prompt's last token again; otherwise that
    token comes with the KV. reserved_tokens: kept free at admission beside the prompt. looks_up: the decode replica
    moves only what its own cache lacks.
    """

    engine: str
    reserves_first: bool
    sends_chunks: bool
    samples_first: bool
    reserved_tokens: int
    looks_up: bool


VLLM: Final = HandOver(
    "vllm", reserves_first=False, sends_chunks=False, samples_first=True, reserved_tokens=0, looks_up=True
)
SGLANG: Final = HandOver(
    "sglang", reserves_first=True, sends_chunks=True, samples_first=False, reserved_tokens=512, looks_up=False
)
DYNAMO: Final = HandOver(
    "dynamo", reserves_first=False, sends_chunks=False, samples_first=True, reserved_tokens=0, looks_up=True
)
HAND_OVERS: Final = {rules.engine: rules for rules in (VLLM, SGLANG, DYNAMO)}
"""By the name after ``--disaggregate``."""
