"""A run over time, for the reports' pictures: what the server told at each reading, and the tokens since the last."""

from __future__ import annotations

from typing import cast

import numpy as np

from kvplan.load.observed.figures import MeasuredRun, token_times
from kvplan.load.observed.monitor import ServerView
from kvplan.runs.directory import Series

_MOST_POINTS = 400


def series_of(run: MeasuredRun, server: ServerView) -> Series | None:
    """At most 400 points, one per reading; None without readings within the run. A figure that one reading lacks is
    left out."""
    stride = -(-len(server.readings) // _MOST_POINTS) or 1
    readings = server.readings[::stride]
    if len(readings) < 2 or not server.within:
        return None
    moments = np.array([reading.seconds for reading in readings])
    arrived = np.array(sorted(time for record in run.records if record.is_served for time in token_times(record)))
    counts = np.searchsorted(arrived, moments)
    spans = np.diff(moments)
    rates = np.concatenate([[0.0], np.diff(counts) / np.where(spans > 0, spans, 1.0)])
    columns: dict[str, list[float | None]] = {
        "seconds": [round(float(moment) - run.start, 4) for moment in moments],
        "kv_usage": [reading.kv_cache_usage for reading in readings],
        "num_running": [reading.num_running for reading in readings],
        "num_waiting": [reading.num_waiting for reading in readings],
        "output_tokens_per_second": [round(float(rate), 3) for rate in rates],
    }
    return cast(Series, {name: values for name, values in columns.items() if None not in values})
