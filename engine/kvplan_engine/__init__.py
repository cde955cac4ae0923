"""kvplan's paged engine: PagedAttention kernels, block tables, continuous batching."""

from kvplan_engine import libraries  # noqa: F401

# isort: split
from kvplan_engine.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from kvplan_engine.config import EngineConfig
from kvplan_engine.core import Engine
from kvplan_engine.errors import ContextTooLong, EngineError, OutOfDeviceMemory
from kvplan_engine.llm import LLM
from kvplan_engine.outputs import CompletionOutput, RequestOutput
from kvplan_engine.sampling.params import SamplingParams

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
