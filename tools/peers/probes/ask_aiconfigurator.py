"""aiconfigurator-core: its memory model for vLLM on an H100, and its cache size of a sequence."""

import logging

from protocol import attempt, read_question, reply

logging.disable(logging.CRITICAL)
SYSTEM, BACKEND, BACKEND_VERSION = "h100_sxm", "vllm", "current"


def main():
    from aiconfigurator_core.sdk import EngineHandle, estimate_kv_cache
    from aiconfigurator_core.sdk.config_builders import build_model_config
    from aiconfigurator_core.sdk.memory import KVCacheEstimator
    from aiconfigurator_core.sdk.models import get_model

    question = read_question()
    folder = question["directory"]
    limits = {"max_num_tokens": question["max_num_batched_tokens"], "max_batch_size": 256}

    def model():
        one_rank = {"tp_size": 1, "pp_size": 1, "attention_dp_size": 1, "moe_tp_size": 1, "moe_ep_size": 1}
        return get_model(folder, build_model_config(**one_rank), BACKEND)

    def weights():
        model()  # says first whether it knows the architecture
        found = KVCacheEstimator.from_request(folder, SYSTEM, BACKEND, BACKEND_VERSION, **limits)
        return found.breakdown["weights_bytes"]

    def kv_cache():
        return model().get_kvcache_bytes_per_sequence(question["context_tokens"])

    def sequences():
        of_one_sequence = kv_cache()
        try:
            found = estimate_kv_cache(
                folder,
                SYSTEM,
                BACKEND,
                BACKEND_VERSION,
                memory_fraction_kind="of_total",
                memory_fraction_value=question["gpu_memory_utilization"],
                **limits,
            )
        except ValueError as error:
            if str(error).startswith("no KV budget"):
                return 0  # its way to say that the weights do not fit
            raise
        return int(found["total_kv_size_bytes"] // of_one_sequence)

    def step_times():
        engine = EngineHandle.compile(folder, SYSTEM, BACKEND, backend_version=BACKEND_VERSION)
        decode = [engine.decode_step_latency(batch, tokens, 2) for batch, tokens in question["decode_steps"]]
        return {"decode_ms": decode, "prefill_ms": [engine.predict_prefill_latency(1, n) for n in question["prompts"]]}

    if "prompts" in question:
        reply("aiconfigurator-core", {"step_times": attempt(step_times)})
        return
    answers = {"weights": attempt(weights), "kv_cache": attempt(kv_cache), "sequences": attempt(sequences)}
    reply("aiconfigurator-core", answers)


if __name__ == "__main__":
    main()
