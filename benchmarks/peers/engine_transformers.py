"""transformers' generate: one left-padded batch of all requests, run to the longest answer."""

from __future__ import annotations

from protocol import Loaded, Order, serve
from workload import Scenario


def load(order: Order) -> Loaded:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(order.num_threads)
    model = AutoModelForCausalLM.from_pretrained(order.directory, dtype=getattr(torch, order.dtype)).eval()
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def run(asked: Scenario) -> list[list[int]]:
        longest = max(len(request.prompt_token_ids) for request in asked.requests)
        padding = [longest - len(request.prompt_token_ids) for request in asked.requests]
        rows = [[0] * pad + request.prompt_token_ids for pad, request in zip(padding, asked.requests, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
        steps = max(request.output_tokens for request in asked.requests)
        tokens = model.generate(
            input_ids=torch.tensor(rows),
            attention_mask=torch.tensor(mask),
            max_new_tokens=steps,
            min_new_tokens=steps,
            do_sample=asked.num_samples > 1,
            num_return_sequences=asked.num_samples,
            pad_token_id=0,
        )
        samples = tokens[:, longest:].tolist()
        wanted = [request.output_tokens for request in asked.requests for _ in range(asked.num_samples)]
        return [sample[:count] for sample, count in zip(samples, wanted, strict=True)]

    return run


if __name__ == "__main__":
    from importlib.metadata import version

    serve(version("transformers"), load)
