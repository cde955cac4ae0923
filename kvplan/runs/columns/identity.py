"""Which trial a row is: of which sweep and model, on what, over which engine and formats."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kvplan.runs.columns.about import About


class IdentityColumns(TypedDict, total=False):
    """Group ``identity``."""

    run_id: Annotated[str, About("the sweep this row belongs to")]
    trial_id: Annotated[str, About("hash of settings, load and run number: equal trials have equal ids in every sweep")]
    trial_number: Annotated[int, About("position in the sweep, from 1")]
    design_parts: Annotated[
        str,
        About(
            "parts of the design this trial belongs to, separated by ';': grid, throughput, memory, probe, audit, slo"
        ),
    ]
    model_id: Annotated[str, About("the model as it was asked for: an id, or the absolute path of a directory or file")]
    device: Annotated[str, About("cpu or cuda")]
    device_name: Annotated[str, About("processor or GPU as the driver names it")]
    node: Annotated[str | None, About("host name of the machine that ran the trial")]
    engine: Annotated[
        str | None, About("what served: kvplan, vllm, sglang, llamacpp or trtllm; empty: a server that does not tell")
    ]
    engine_version: Annotated[str | None, About("version of the engine")]
    url: Annotated[str | None, About("address of the server that was loaded; empty: no server")]
    kernels: Annotated[
        str | None,
        About(
            "what computed the steps of kvplan's engine: cpu-amx, cpu-avx512, cpu-avx2, cpu-sse2, cpu-neon or cuda; "
            "reference: plain torch, many times slower, for want of compiled kernels; empty: nothing was computed, "
            "another engine, or not known"
        ),
    ]
    num_threads: Annotated[
        int | None, About("threads that computed on a CPU, of one rank; empty: not known", "threads")
    ]
    dtype: Annotated[str, About("storage type of weights and activations")]
    kv_cache_dtype: Annotated[str, About("storage type of the KV cache")]
    load_format: Annotated[
        str, About("format of the weights; dummy: random weights; none: only counted, so there are no speeds")
    ]
    dummy_layers: Annotated[
        str | None, About("shared: identical layers used one copy of dummy weights but count in full")
    ]
    model_impl: Annotated[
        str | None,
        About(
            "what computed the model: native, or transformers, with activations and speed measured, not predicted; "
            "empty: nothing, or another engine"
        ),
    ]
    activation_quantization: Annotated[
        str | None, About("int8: what weights in few bits are multiplied with was rounded to 8 bits; empty: it was not")
    ]
    commit: Annotated[
        str | None, About("commit of the checkout that measured; -dirty: with changes; empty: no checkout")
    ]
    seed: Annotated[int, About("seed of the workload and of random weights")]
    run_number: Annotated[int, About("repetition of the same settings, from 1")]
    rerun_of: Annotated[int | None, About("run_number of the outlier that this run repeats")]
    rerun_reason: Annotated[str | None, About("why that run is an outlier")]
    started_at: Annotated[str, About("when the trial started", "UTC")]
