"""What was expected before the trial."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kvplan.runs.columns.about import About


class PredictionColumns(TypedDict, total=False):
    """Group ``prediction``."""

    predicted_status: Annotated[str | None, About("status expected before the trial")]
    pred_max_concurrency: Annotated[
        int | None,
        About("peak number of running sequences, predicted from request lengths and pool size alone", "sequences"),
    ]
    meas_max_concurrency: Annotated[int | None, About("peak number of running sequences, measured", "sequences")]
    pred_error_pct: Annotated[
        float | None, About("(pred_max_concurrency - meas_max_concurrency) / meas_max_concurrency", "%")
    ]
    pred_output_throughput: Annotated[float | None, About("output throughput expected before the trial", "tokens/s")]
    pred_median_ttft_ms: Annotated[float | None, About("median time to first token expected before the trial", "ms")]
    pred_median_tpot_ms: Annotated[float | None, About("median time per output token expected before the trial", "ms")]
    pred_median_itl_ms: Annotated[float | None, About("median inter-token latency expected before the trial", "ms")]
    throughput_over_pred: Annotated[float | None, About("output_throughput / pred_output_throughput; 1: as predicted")]
    ttft_over_pred: Annotated[float | None, About("median_ttft_ms / pred_median_ttft_ms")]
    tpot_over_pred: Annotated[float | None, About("median_tpot_ms / pred_median_tpot_ms")]
    prediction_origin: Annotated[
        str | None,
        About(
            "source of the expected speeds, empty without any: measured (profile fitted to this model on this device), "
            "calibrated (to another model on this device) or roofline (by a data sheet, or scaled by earlier trials)"
        ),
    ]
    learned_time_factor: Annotated[float, About("factor applied to the expected times, learned from earlier trials")]
    predicted_seconds: Annotated[float, About("expected serving time", "s")]
