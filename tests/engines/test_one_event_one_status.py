"""What happens to an engine has one status, whichever engine it is: tables set them side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.engines.documented.sglang import Sglang
from kvplan.engines.documented.trtllm import TrtLlm
from kvplan.engines.interface import Ending, Failure
from kvplan.engines.llamacpp.log import classify
from kvplan.engines.vllm.failures import read_failure
from kvplan.runs.statuses import STATUS_MEANING
from kvplan_engine.errors import ContextTooLong, OutOfDeviceMemory

OUTPUTS = Path(__file__).parents[1] / "data" / "engine_outputs"
REFUSED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 79.19 GiB "
    "of which 100.00 MiB is free.\n"
)
# As vLLM 0.19 prints them (vllm/v1/worker/gpu_model_runner.py, vllm/v1/core/kv_cache_utils.py).
LOADING = "INFO 11-20 09:59:00 [gpu_model_runner.py:1] Starting to load model x...\n  in load_model\n"
LOADED = "INFO 11-20 10:00:00 [gpu_model_runner.py:1] Model loading took 14.9 GiB and 3.2 seconds\n"
POOL = LOADED + "INFO 11-20 10:00:10 [kv_cache_utils.py:1] GPU KV cache size: 446,368 tokens\n"
CAPTURING = POOL + "INFO 11-20 10:00:11 [gpu_model_runner.py:2] capture_model\n"
TOO_LONG = (
    "Value error, User-specified max_model_len (200000) is greater than the derived max_model_len "
    "(max_position_embeddings=2048 or model_max_length=None in model's config.json).\n"
)


def vllm(log: str, stage: str = "starting") -> Failure:
    return read_failure(Ending(stage, 1, log))  # type: ignore[arg-type]


def sglang(log: str, stage: str = "starting") -> Failure:
    return Sglang().failure(Ending(stage, 1, log))  # type: ignore[arg-type]


def trtllm(log: str, stage: str = "starting") -> Failure:
    return TrtLlm().failure(Ending(stage, 1, log))  # type: ignore[arg-type]


def llamacpp(log: str, stage: str = "starting") -> Failure:
    return classify(Ending(stage, 1, log))  # type: ignore[arg-type]


def own(phase: str) -> Failure:
    error = OutOfDeviceMemory("x", phase=phase)
    return Failure(error.status, "x", error.phase)  # type: ignore[arg-type]


SGLANG_CAPTURING = (OUTPUTS / "sglang" / "capturing-qwen3-4b.log").read_text()
TRTLLM_POOL = (OUTPUTS / "trtllm" / "up-triton.log").read_text()
UP = SGLANG_CAPTURING + "The server is fired up and ready to roll!\n"

EVENTS = {
    "memory runs out while weights are loaded": (
        "oom_weights",
        own("weights"),
        vllm(LOADING + REFUSED),
        sglang("sglang Load weight begin. avail mem=23.00 GB\n" + REFUSED),
        trtllm(REFUSED),
        llamacpp(
            "ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory\nerror loading model: x\n"
        ),
    ),
    "memory runs out while graphs are captured": (
        "oom_kv_init",
        own("graph_capture"),
        vllm(CAPTURING + REFUSED),
        sglang(SGLANG_CAPTURING + REFUSED),
        trtllm(TRTLLM_POOL + "Creating CUDA graph instances for 34 batch sizes.\n" + REFUSED),
    ),
    "memory runs out while requests are served": (
        "oom_runtime",
        own("runtime"),
        vllm(POOL + REFUSED, "serving"),
        sglang(UP + REFUSED, "serving"),
        trtllm(TRTLLM_POOL + REFUSED, "serving"),
        llamacpp("main: server is listening\nfailed to allocate buffer of size 5\n", "serving"),
    ),
    "max_model_len is longer than the model's positions": (
        ContextTooLong.status,
        vllm(TOO_LONG),
        sglang("ValueError: User-specified context_length (9) is greater than the derived context_length (8).\n"),
    ),
}


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_has_the_same_status_whichever_engine_it_happens_to(event: str) -> None:
    status, *failures = EVENTS[event]
    assert [failure.status for failure in failures] == [status] * len(failures)
    assert len({failure.oom_phase for failure in failures}) == 1
    assert status in STATUS_MEANING


def test_the_meaning_of_a_status_names_every_event_that_it_is_said_of() -> None:
    assert "graphs" in STATUS_MEANING["oom_kv_init"]
    assert STATUS_MEANING["oom_runtime"] == "an allocation failed while requests were being served"


def test_what_vllm_would_accept_is_read_from_its_refusal() -> None:
    failure = vllm(TOO_LONG)
    assert (failure.largest_max_model_len, failure.context_limited_by) == (2048, "model")
    assert failure.error == "max_model_len 200,000 is longer than the model's 2,048 positions."
