"""The numbers of the server as a whole: those of its API process, and those of each of its engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kvplan_engine.server.metrics import buckets
from kvplan_engine.server.metrics.histogram import Histogram
from kvplan_engine.server.metrics.state import AdaptersInFlight, EngineMetrics


class ServerMetrics:
    """Every number that /metrics shows. adapters: asked at each reading which of them have requests."""

    def __init__(self, num_engines: int = 1) -> None:
        self.engines = [EngineMetrics() for _ in range(num_engines)]
        self.adapters: Callable[[], AdaptersInFlight] = AdaptersInFlight
        self.num_rejections = Counter[str](max_num_queued_reqs=0, max_num_queued_tokens=0)
        self.num_http_requests = Counter[tuple[str, str, str]]()  # (handler, method, status like "2xx")
        self.http_seconds: dict[tuple[str, str], Histogram] = {}  # by (handler, method)
        self.loop_lag = Histogram(buckets.LOOP_LAG_SECONDS)

    def count_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        self.num_http_requests[handler, method, f"{status // 100}xx"] += 1
        histogram = self.http_seconds.get((handler, method))
        if histogram is None:
            histogram = self.http_seconds[handler, method] = Histogram(buckets.HTTP_SECONDS)
        histogram.observe(seconds)
