"""hf-mem: its cache formula on the config, with the checks that its command makes before it."""

import json
from pathlib import Path

from protocol import attempt, no_answer, read_question, reply

REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads")


def main():
    question = read_question()
    config = json.loads((Path(question["directory"]) / "config.json").read_text())
    text = {**config.get("text_config", config)}
    for key in ("dtype", "torch_dtype", "quantization_config"):  # as its command does for multimodal models
        if key in config:
            text.setdefault(key, config[key])
    remarks = []
    answers = {
        "weights": no_answer("reads the headers of the files on the Hub"),
        "kv_cache": attempt(lambda: _kv_cache(text, question, remarks)),
        "sequences": no_answer("does not say"),
    }
    reply("hf-mem", answers, remarks)


def _kv_cache(config, question, remarks):
    from hf_mem.safetensors import kv_cache

    if not all(key in config for key in REQUIRED):
        raise RuntimeError(f"config.json lacks one of {', '.join(REQUIRED)}")
    try:
        dtype = kv_cache.resolve_kv_cache_dtype(config, "auto", None, "local/model")
    except RuntimeError as error:
        if "--kv-cache-dtype" not in str(error):
            raise
        remarks.append("asked again with --kv-cache-dtype bfloat16, as its message advises")
        dtype = "BF16"
    return kv_cache.compute_safetensors_kv_cache_size(config, dtype, question["context_tokens"])


if __name__ == "__main__":
    main()
