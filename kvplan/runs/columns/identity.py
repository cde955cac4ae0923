"""Which trial a row is: of which sweep and model, on what, over which engine and formats."""

from __future__ import annotations

from typing import Annotated, TypedDict

from kvplan.runs.columns.about import About


class IdentityColumns(TypedDict, total=False):
    """Group ``identity``."""

    run_id: Annotated[str, About("identity", "the sweep this row belongs to")]
    trial_id: Annotated[
        str, About("identity", "hash of settings, load and run number: equal trials have equal ids in every sweep")
    ]
    trial_number: Annotated[int, About("identity", "position in the sweep, from 1")]
    design_parts: Annotated[
        str,
        About(
            "identity",
            "parts of the design this trial belongs to, separated by ';': grid, throughput, memory, probe, audit, slo",
        ),
    ]
    model_id: Annotated[
        str, About("identity", "the model as it was asked for: an id, or the absolute path of a directory or file")
    ]
    device: Annotated[str, About("identity", "cpu or cuda")]
    device_name: Annotated[str, About("identity", "processor or GPU as the driver names it")]
    node: Annotated[str | None, About("identity", "host name of the machine that ran the trial")]
    engine: Annotated[
        str | None,
        About("identity", "what served: kvplan, vllm, sglang, llamacpp or trtllm; empty: a server that does not tell"),
    ]
    engine_version: Annotated[str | None, About("identity", "version of the engine")]
    url: Annotated[str | None, About("identity", "address of the server that was loaded; empty: no server")]
    kernels: Annotated[
        str | None,
        About(
            "identity",
            "what computed the steps of kvplan's engine: cpu-amx, cpu-avx512, cpu-avx2, cpu-sse2, cpu-neon or cuda; "
            "reference: plain torch, many times slower, for want of compiled kernels; empty: nothing was computed, "
            "another engine, or not known",
        ),
    ]
    num_threads: Annotated[
        int | None, About("identity", "threads that computed on a CPU, of one rank; empty: not known", unit="threads")
    ]
    dtype: Annotated[str, About("identity", "storage type of weights and activations")]
    kv_cache_dtype: Annotated[str, About("identity", "storage type of the KV cache")]
    load_format: Annotated[
        str,
        About("identity", "format of the weights; dummy: random weights; none: only counted, so there are no speeds"),
    ]
    dummy_layers: Annotated[
        str | None,
        About("identity", "shared: identical layers used one copy of dummy weights but count in full"),
    ]
    model_impl: Annotated[
        str | None,
        About(
            "identity",
            "what computed the model: native, or transformers, with activations and speed measured, not predicted; "
            "empty: nothing, or another engine",
        ),
    ]
    activation_quantization: Annotated[
        str | None,
        About(
            "identity", "int8: what weights in few bits are multiplied with was rounded to 8 bits; empty: it was not"
        ),
    ]
    commit: Annotated[
        str | None, About("identity", "commit of the checkout that measured; -dirty: with changes; empty: no checkout")
    ]
    seed: Annotated[int, About("identity", "seed of the workload and of random weights")]
    run_number: Annotated[int, About("identity", "repetition of the same settings, from 1")]
    rerun_of: Annotated[int | None, About("identity", "run_number of the outlier that this run repeats")]
    rerun_reason: Annotated[str | None, About("identity", "why that run is an outlier")]
    started_at: Annotated[str, About("identity", "when the trial started", unit="UTC")]
