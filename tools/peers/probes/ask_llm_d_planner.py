"""llm-d-planner: its capacity functions, with the checkpoint's element counts handed in instead of the Hub's answer."""

import os

from protocol import attempt, no_answer, read_question, reply

GPU_MEMORY_GIB = 80
"""What its own examples give for an H100."""


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    from planner import capacity_planner

    question = read_question()
    folder, tokens = question["directory"], question["context_tokens"]
    capacity_planner.model_params_by_dtype = lambda *_args, **_options: question["elements_by_dtype"]

    def kv_cache():
        config = capacity_planner.get_model_config_from_hf(folder)
        return capacity_planner.kv_cache_req(folder, config, tokens) * 2**30

    def sequences():
        config = capacity_planner.get_model_config_from_hf(folder)
        share = question["gpu_memory_utilization"]
        return capacity_planner.max_concurrent_requests(folder, config, tokens, GPU_MEMORY_GIB, share)

    answers = {
        "weights": no_answer("reads the headers of the files on the Hub"),
        "kv_cache": attempt(kv_cache),
        "sequences": attempt(sequences),
    }
    reply("llm-d-planner", answers, ["weights handed in"])


if __name__ == "__main__":
    main()
