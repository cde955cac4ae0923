"""A load over HTTP as a sweep shows it on its way."""

from __future__ import annotations

from kvplan.load.run import LoadProgress, OnProgress
from kvplan.sweeps.hosts import OnEvent


def progress_to(on_event: OnEvent, num_tokens: int) -> OnProgress:
    """A load's progress as a sweep shows it. num_tokens: that all requests will have."""

    def report(progress: LoadProgress) -> None:
        reading, sent = progress.reading, progress.sent
        on_event(
            {
                "type": "progress",
                "output_tokens_per_second": sent.num_tokens / max(sent.seconds, 1e-9),
                "kv_usage": (reading.kv_cache_usage if reading else None) or 0.0,
                "num_running": int((reading.num_running if reading else None) or 0),
                "num_waiting": int((reading.num_waiting if reading else None) or 0),
                "share": sent.num_tokens / max(num_tokens, 1),
                "memory_share": None,
            }
        )

    return report
