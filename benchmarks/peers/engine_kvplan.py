"""kvplan's engine, through its public Python interface."""

from __future__ import annotations

from formats import QUANTISED, computed_type, gguf_path
from protocol import Loaded, Order, serve
from workload import MAX_MODEL_LEN, MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, Scenario, sampling_settings


def load(order: Order) -> Loaded:
    from kvplan_engine import LLM, SamplingParams  # before torch: it decides how long waiting threads spin

    # isort: split
    import torch

    torch.set_num_threads(order.num_threads)
    llm = LLM(
        model=gguf_path(order.directory) if order.dtype in QUANTISED else order.directory,
        device="cpu",
        dtype=computed_type(order.dtype),
        activation_quantization="int8" if order.rounds_activations else "none",
        device_memory="6GiB",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        enable_prefix_caching=order.shares_prefixes,
        seed=0,
    )

    def run(asked: Scenario) -> list[list[int]]:
        params = [SamplingParams(**sampling_settings(request, asked.num_samples)) for request in asked.requests]
        prompts = [{"prompt_token_ids": request.prompt_token_ids} for request in asked.requests]
        return [list(sample.token_ids) for output in llm.generate(prompts, params) for sample in output.outputs]

    return run


if __name__ == "__main__":
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("kvplan")
    except PackageNotFoundError:
        installed = "checkout"
    serve(installed, load)
