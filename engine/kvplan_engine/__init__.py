"""kvplan's paged engine: PagedAttention kernels, block tables, continuous batching."""

from kvplan_engine import thread_settings as thread_settings

# isort: split
from kvplan_engine.config import EngineConfig
from kvplan_engine.engine import Engine
from kvplan_engine.errors import ContextTooLong, EngineError, OutOfDeviceMemory
from kvplan_engine.llm import LLM
from kvplan_engine.requests.beams import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from kvplan_engine.requests.outputs import CompletionOutput, RequestOutput
from kvplan_engine.requests.sampling_params import SamplingParams

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "ContextTooLong",
    "Engine",
    "EngineConfig",
    "EngineError",
    "OutOfDeviceMemory",
    "RequestOutput",
    "SamplingParams",
]
