"""What was expected before the trial."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kvplan.runs.columns.about import About


class PredictionColumns(TypedDict, total=False):
    """Group ``prediction``."""

    predicted_status: Annotated[str | None, About("prediction", "status expected before the trial")]
    pred_max_concurrency: Annotated[
        int | None,
        About(
            "prediction",
            "peak number of running sequences, predicted from request lengths and pool size alone",
            unit="sequences",
        ),
    ]
    meas_max_concurrency: Annotated[
        int | None, About("prediction", "peak number of running sequences, measured", unit="sequences")
    ]
    pred_error_pct: Annotated[
        float | None,
        About("prediction", "(pred_max_concurrency - meas_max_concurrency) / meas_max_concurrency", unit="%"),
    ]
    pred_output_throughput: Annotated[
        float | None, About("prediction", "output throughput expected before the trial", unit="tokens/s")
    ]
    pred_median_ttft_ms: Annotated[
        float | None, About("prediction", "median time to first token expected before the trial", unit="ms")
    ]
    pred_median_tpot_ms: Annotated[
        float | None, About("prediction", "median time per output token expected before the trial", unit="ms")
    ]
    pred_median_itl_ms: Annotated[
        float | None, About("prediction", "median inter-token latency expected before the trial", unit="ms")
    ]
    throughput_over_pred: Annotated[
        float | None, About("prediction", "output_throughput / pred_output_throughput; 1: as predicted")
    ]
    ttft_over_pred: Annotated[float | None, About("prediction", "median_ttft_ms / pred_median_ttft_ms")]
    tpot_over_pred: Annotated[float | None, About("prediction", "median_tpot_ms / pred_median_tpot_ms")]
    prediction_origin: Annotated[
        str | None,
        About(
            "prediction",
            "source of the expected speeds, empty without any: measured (profile fitted to this model on this device), "
            "calibrated (to another model on this device) or roofline (by a data sheet, or scaled by earlier trials)",
        ),
    ]
    learned_time_factor: Annotated[
        float, About("prediction", "factor applied to the expected times, learned from earlier trials")
    ]
    predicted_seconds: Annotated[float, About("prediction", "expected serving time", unit="s")]
