"""A server's URL -> readings of its metrics, whichever engine serves.

TensorRT-LLM's own /metrics: a JSON list of iteration statistics since it was read last.

Reading empties the server's buffer, so of two readers each gets a part: the Prometheus page is preferred where there is
one. The list is empty until ``enable_iter_perf_stats`` is set and a request has come.

llama-server's /slots: what its metrics page stopped telling in May 2025 (#13660), how many tokens are held.

A slot is a place for one sequence: ``n_ctx`` tokens at most, of which ``n_prompt_tokens`` (prompt and answer) are in
the cache. An idle slot keeps those of its last sequence until another takes it, so idle ones count as free. Whether
slots share one pool (``--kv-unified``, the default where ``--parallel`` is not given) is told nowhere: then all of them
cannot be filled at once, and a share of the pool is not known. tools/server/server-context.cpp, b11434.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.metrics.http import DEFAULT_TIMEOUT_SECONDS, PersistentConnection, Response, ServerAddress
from kvplan.metrics.limits import LIMIT_PATHS, ServerLimits, limits_in
from kvplan.metrics.page import read_page
from kvplan.metrics.prometheus import figure_of
from kvplan.metrics.reading import CacheConfig, EngineName, ServerReading

_LARGEST: Final = 2**53
"""More is no number of tokens."""
_PAGE: Final = "/metrics"
_TRTLLM_PAGE: Final = "/prometheus/metrics"
_SLOTS: Final = "/slots"
_OK: Final = 200
_REFUSED: Final = (401, 403)


class MetricsSource:
    """Reads one server over one kept connection. For one thread."""

    def __init__(
        self, url: str, api_key: str | None = None, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> None:
        """UsageError if ``url`` is no address. Nothing is sent yet."""
        self.address = ServerAddress.parse(url)
        self._connection = PersistentConnection(self.address, api_key, timeout_seconds=timeout_seconds)
        self._path = _PAGE
        self._tells_slots = True

    def __enter__(self) -> MetricsSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def read(self) -> ServerReading:
        """The server's metrics now. KvplanError if it cannot be reached or has no metrics that are known."""
        answer = self._connection.get(self._path)
        seconds = time.perf_counter()
        if answer.status != _OK:
            raise self._refusal(answer)
        if answer.body.lstrip()[:1] in (b"[", b"{"):
            return self._read_trtllm(answer)
        reading = read_page(answer.text, seconds)
        if reading is None:
            raise KvplanError(
                f"The metrics at {self.address.url}{self._path} are of no engine that is known here.",
                hint="vLLM, SGLang, llama.cpp, TensorRT-LLM and kvplan are read",
            )
        return self._with_slots(reading) if reading.engine == "llamacpp" else reading

    def limits(self, engine: EngineName) -> ServerLimits:
        """The settings that the server tells, as many as it does; all None where it tells none."""
        found = ServerLimits()
        for path in (*LIMIT_PATHS.get(engine, ()), "/v1/models"):
            answer = self._connection.get(path)
            if answer.status == _OK:
                found = found.filled_from(limits_in(answer.json()))
        return found

    def _with_slots(self, reading: ServerReading) -> ServerReading:
        """Not asked again where llama-server refuses it (--no-slots)."""
        if reading.kv_cache_used_tokens is not None or not self._tells_slots:
            return reading
        answer = self._connection.get(_SLOTS)
        self._tells_slots = answer.status == _OK
        return with_slots(reading, answer.json()) if self._tells_slots else reading

    def _read_trtllm(self, answer: Response) -> ServerReading:
        """TensorRT-LLM's Prometheus page if it has one, which is then the only one that is read; else its JSON."""
        page = self._connection.get(_TRTLLM_PAGE)
        reading = read_page(page.text) if page.status == _OK else None
        if reading is not None:
            self._path = _TRTLLM_PAGE
            return reading
        iterations = read_iterations(answer.json())
        if iterations is None:
            raise KvplanError(
                f"The server at {self.address.url} has no iteration statistics yet.",
                hint="TensorRT-LLM collects them with enable_iter_perf_stats: true, from the first request on",
            )
        return iterations

    def _refusal(self, answer: Response) -> KvplanError:
        where = f"{self.address.url}{self._path}"
        if answer.status in _REFUSED:
            return KvplanError(f"{where} refuses the API key.", hint="give one with --api-key")
        return KvplanError(
            f"{where} answers {answer.status} instead of metrics.",
            hint="SGLang needs --enable-metrics, llama-server needs --metrics, vLLM must not have --disable-log-stats",
        )


def read_iterations(document: object, seconds: float | None = None) -> ServerReading | None:
    """The newest iteration as a reading; None for anything but a list that holds one.

    Counters are left out: the list holds only what was not read before.
    """
    if not isinstance(document, list) or not document or not isinstance(document[-1], Mapping):
        return None
    newest: Mapping[str, Any] = document[-1]
    pool = newest.get("kvCacheStats")
    pool = pool if isinstance(pool, Mapping) else {}
    batch = newest.get("inflightBatchingStats")
    batch = batch if isinstance(batch, Mapping) else {}
    blocks, used, size = (_amount(pool.get(name)) for name in ("maxNumBlocks", "usedNumBlocks", "tokensPerBlock"))
    usage = used / blocks if used is not None and blocks else None
    seats = _amount(newest.get("maxNumActiveRequests"))
    return ServerReading(
        engine="trtllm",
        seconds=time.perf_counter() if seconds is None else seconds,
        num_running=_amount(newest.get("numActiveRequests")),
        num_waiting=_sum(newest.get("numQueuedRequests"), batch.get("numPausedRequests")),
        kv_cache_usage=usage,
        kv_cache_usage_highest=usage,
        kv_cache_used_tokens=used * size if used is not None and size is not None else None,
        max_num_seqs=None if seats is None else int(seats),
        prefix_cache_hit_rate=_amount(pool.get("cacheHitRate")),
        prefix_unit="blocks",
        cache=CacheConfig(
            num_blocks=None if blocks is None else int(blocks),
            block_size=None if size is None else int(size),
            kv_cache_size_tokens=int(blocks * size) if blocks is not None and size is not None else None,
        ),
    )


def _amount(value: object) -> float | None:
    """A figure that counts something; None for any other, and below 0."""
    found = figure_of(value)
    return None if found is None or found < 0 else found


def _sum(first: object, second: object) -> float | None:
    """Requests that wait: queued ones, with those that were paused where the server tells."""
    queued = _amount(first)
    return None if queued is None else queued + (_amount(second) or 0.0)


def with_slots(reading: ServerReading, document: object) -> ServerReading:
    """The reading with what the slots hold; as it was for anything but a list of slots."""
    if not isinstance(document, list) or not document or not all(isinstance(slot, Mapping) for slot in document):
        return reading
    busy = [slot for slot in document if slot.get("is_processing")]
    held = [_count(slot, "n_prompt_tokens") for slot in busy]
    known = [tokens for tokens in held if tokens is not None]
    return replace(
        reading,
        num_slots=len(document),
        slot_tokens=_count(document[0], "n_ctx"),
        kv_cache_used_tokens=float(sum(known)) if len(known) == len(held) else None,
    )


def _count(slot: Mapping[str, Any], name: str) -> int | None:
    value = slot.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else None
