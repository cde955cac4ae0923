"""A server's URL -> readings of its metrics, whichever engine serves."""

from __future__ import annotations

import time
from typing import Final

from kvplan.errors import KvplanError
from kvplan.metrics.http import DEFAULT_TIMEOUT_SECONDS, PersistentConnection, Response, ServerAddress
from kvplan.metrics.limits import LIMIT_PATHS, ServerLimits, limits_in
from kvplan.metrics.others import read_iterations, with_slots
from kvplan.metrics.page import read_page
from kvplan.metrics.reading import EngineName, ServerReading

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
