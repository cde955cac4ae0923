"""OpenVINO GenAI's continuous batching, on models that models.py exported (DIRECTORY-openvino).

It computes in the run's type where the processor can, in float32 over the same weights where it cannot: asked for
bfloat16 there, the plugin refuses. Its KV cache is set to that type too: the plugin's default for bfloat16 is 8 bits,
which is another accuracy.
"""

from __future__ import annotations

from formats import computed_type, openvino_path
from protocol import Loaded, Order, serve
from workload import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, Request, Scenario


def load(order: Order) -> Loaded:
    import numpy as np
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
    scheduler.max_num_seqs = MAX_NUM_SEQS
    scheduler.cache_size = 4
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = order.shares_prefixes
    can_bfloat16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    precision = "bf16" if computed_type(order.dtype) == "bfloat16" and can_bfloat16 else "f32"
    properties = {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
        "INFERENCE_NUM_THREADS": order.num_threads,
    }
    directory = openvino_path(order.directory, order.dtype)
    pipeline = genai.ContinuousBatchingPipeline(directory, scheduler, "CPU", properties)

    def configure(request: Request, num_samples: int) -> object:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = request.output_tokens
        config.ignore_eos = True
        config.do_sample = num_samples > 1
        config.num_return_sequences = num_samples
        return config

    def run(asked: Scenario) -> list[list[int]]:
        prompts = [openvino.Tensor(np.array([request.prompt_token_ids], dtype=np.int64)) for request in asked.requests]
        configs = [configure(request, asked.num_samples) for request in asked.requests]
        outputs = sorted(pipeline.generate(prompts, configs), key=lambda output: output.m_request_id)
        return [list(sample) for output in outputs for sample in output.m_generation_ids]

    return run


if __name__ == "__main__":
    import openvino_genai

    serve(openvino_genai.__version__, load)
