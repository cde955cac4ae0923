"""The right figures, with what they rest on, and why a peer's figure differs: data, written by hand.

A figure is computed here from the published config, apart from kvplan's own code, or read in a published start-up log;
where neither decides, ``value`` is None and the difference is called open.
"""

from __future__ import annotations

from dataclasses import dataclass

from peers.questions import CONTEXT_TOKENS, Subject

Place = tuple[Subject, str]


@dataclass(frozen=True, slots=True)
class Truth:
    """``value`` in bytes or sequences; None where nothing at hand decides. ``basis``: formula, log or source.

    ``at_most``: what a figure cannot exceed where its value is open.
    """

    value: float | None
    basis: str
    at_most: float | None = None


_T = CONTEXT_TOKENS
_COUNTED = "parameters as transformers 5.23 builds the model with its head, x 2 B"

TRUTHS: dict[Place, Truth] = {
    ("weights", "llama-3.1-8b"): Truth(8_030_261_248 * 2, f"8,030,261,248 {_COUNTED}; start-up V018 loads 14.99 GiB"),
    ("weights", "qwen3-32b"): Truth(32_762_123_264 * 2, f"32,762,123,264 {_COUNTED}"),
    ("weights", "phi-3.5-mini"): Truth(3_821_079_552 * 2, f"3,821,079,552 {_COUNTED}"),
    ("weights", "gpt-oss-20b"): Truth(
        24 * 32 * 3 * 2880 * 2880 * 4.25 / 8 + (20_914_757_184 - 24 * 32 * 3 * 2880 * 2880) * 2,
        "24 layers x 32 experts x 3 x 2,880 x 2,880 at 4.25 bits (MXFP4: 4 bits and a scale byte per 32), the rest of "
        "20,914,757,184 parameters in bfloat16",
    ),
    ("weights", "deepseek-v3"): Truth(
        671_026_419_200 + 1_960_809_984 + 669_065_609_216 / 128**2 * 4,
        "671,026,419,200 parameters (transformers 5.23, without the multi-token-prediction layer): 1 B each in fp8, "
        "2 B in what stays bfloat16, and 4 B of scale per block of 128 x 128",
    ),
    ("weights", "deepseek-v3.2"): Truth(
        671_877_944_064 + 1_960_825_600 + 669_917_118_464 / 128**2 * 4,
        "as DeepSeek-V3, and the indexer's projections",
    ),
    ("kv_cache", "deepseek-v3"): Truth(
        61 * (512 + 64) * 2 * _T,
        "61 layers x (512 latent + 64 rotary) x 2 B per token; vLLM 0.32's own planner: 2,048 blocks x 1,124,352 B",
    ),
    ("kv_cache", "deepseek-v3.2"): Truth(
        61 * ((512 + 64) * 2 + 128 + 4) * _T,
        "61 layers x ((512 + 64) x 2 B + an index key of 128 fp8 values and a 4 B scale): vLLM 0.32, "
        "models/deepseek_v2.py, DeepseekV32IndexerCache (torch.uint8)",
    ),
    ("kv_cache", "gemma-3-27b"): Truth(
        (10 * _T + 52 * 1024) * 2 * 16 * 128 * 2,
        "10 of 62 layers keep every token, 52 a window of 1,024; 2 x 16 heads x 128 x 2 B. Start-ups V010 and V085 "
        "print tokens that only windows explain",
    ),
    ("kv_cache", "gpt-oss-20b"): Truth(
        (12 * _T + 12 * 128) * 2 * 8 * 64 * 2,
        "12 layers keep every token, 12 a window of 128; 2 x 8 heads x 64 x 2 B (start-up V101: windows, bfloat16)",
    ),
    ("kv_cache", "qwen3-next-80b-a3b"): Truth(
        12 * 2 * 2 * 256 * 2 * _T + 36 * (32 * 128 * 128 + 3 * 8192) * 2,
        "12 of 48 layers attend; 36 keep a state in the model's dtype: vLLM 0.32, mamba_utils.py, "
        '_mamba_state_dtype with mamba_ssm_cache_dtype "auto"',
    ),
    ("kv_cache", "jamba-v0.1"): Truth(
        4 * 2 * 8 * 128 * 2 * _T + 28 * (8192 * 16 + 8192 * 3) * 2,
        "4 of 32 layers attend; 28 keep a Mamba state of 8,192 x (16 + 3) x 2 B",
    ),
    ("kv_cache", "nemotron-3-nano-30b"): Truth(
        6 * 2 * 2 * 128 * 2 * _T + 23 * (64 * 64 * 128 * 4 + 3 * 6144 * 2),
        "6 of 52 layers attend; 23 keep a Mamba-2 state, in float32 as its config says; 23 are feed-forward",
    ),
    ("kv_cache", "mistral-7b-v0.1"): Truth(
        32 * 2 * 8 * 128 * 2 * 4096,
        "every layer has a window of 4,096 (config: sliding_window), which vLLM keeps to (kv_cache_interface.py, "
        "SlidingWindowSpec)",
    ),
    ("sequences", "llama-3.1-8b"): Truth(
        13,
        "start-up V030 (vLLM 0.19.0, same GPU, utilization 0.95) prints 14.53; 0.05 x 79.19 GiB less makes 13.5, and "
        "graphs, in the budget since 0.21, 13.3",
    ),
    ("sequences", "qwen3-32b"): Truth(
        0,
        "0.9 x 79.19 GiB - 61.03 of weights - 2.23 of activations (V064 and V065, same vocabulary) - 0.25 leaves "
        "7.76 GiB of the 8 that one sequence takes",
    ),
    ("sequences", "gpt-oss-20b"): Truth(
        None,
        "no start-up in this setting is published. vLLM 0.32 admits with room for two batches of 8,192 in each "
        "windowed layer (kv_cache_interface.py, max_in_flight_tokens): 1.13 GiB per sequence, though 0.75 later. "
        "Not more than (0.9 x 79.19 - 12.82) / 0.753 = 77, with nothing taken but weights",
        at_most=77,
    ),
    ("sequences", "nemotron-3-nano-30b"): Truth(
        None,
        "no start-up in this setting is published. vLLM 0.32 keeps three states per sequence for prefix caching (this "
        "page counts two) and "
        "rounds attention up to blocks as large as a state. Not more than (0.9 x 79.19 - 58.82) / 0.233 = 53, with "
        "nothing taken but weights",
        at_most=53,
    ),
    ("sequences", "mistral-7b-v0.1"): Truth(
        None,
        "no start-up in this setting is published. vLLM 0.32 admits with room for the window and two batches of 8,192 "
        "(kv_cache_interface.py, max_in_flight_tokens): 2.50 GiB per sequence, though 0.50 later. "
        "Not more than (0.9 x 79.19 - 13.49) / 0.5 = 115, with nothing taken but weights",
        at_most=115,
    ),
}
"""What is right, by subject and model. Rows V... stand in tests/data/vllm_startups.csv."""

_LOST_HEAD = "builds the model without its output head"
_ALL_FULL = "takes every layer for full attention"
_NO_OVERHEAD = "subtracts weights only by default (--runtime-reserve-gib 0) and takes 80 GB for 80 GiB"
_NOMINAL = "takes the GPU for 80 GiB, where logs show 79.19, and leaves out graphs"
_STEADY = "divides by what a sequence holds once its prompt has been read"

REASONS: dict[tuple[Subject, str, str], str] = {
    ("weights", "llama-3.1-8b", "accelerate"): _LOST_HEAD,
    ("weights", "qwen3-32b", "accelerate"): _LOST_HEAD,
    ("weights", "phi-3.5-mini", "accelerate"): _LOST_HEAD,
    ("weights", "gpt-oss-20b", "accelerate"): f"its row int4: 4 bits for every parameter, no scales; {_LOST_HEAD}",
    ("weights", "gpt-oss-20b", "aiconfigurator"): "experts without their scales and biases, and no output head",
    ("weights", "deepseek-v3", "aiconfigurator"): "counts experts in all 61 layers; the first 3 are dense",
    ("weights", "deepseek-v3.2", "aiconfigurator"): "counts experts in all 61 layers; the first 3 are dense",
    (
        "kv_cache",
        "deepseek-v3",
        "aiconfigurator",
    ): "takes an fp8 cache because the weights are; vLLM's default is bfloat16",
    ("kv_cache", "deepseek-v3", "hf-mem"): "128 full heads instead of the latent vector, in the weights' fp8",
    ("kv_cache", "deepseek-v3.2", "aiconfigurator"): "512 fp8 values, 64 rotary ones in bfloat16 and the index key, "
    "because the weights are fp8; vLLM's default is bfloat16",
    ("kv_cache", "deepseek-v3.2", "llm-d-planner"): "128 full heads: its list of latent models lacks this one",
    ("kv_cache", "deepseek-v3.2", "hf-mem"): "128 full heads instead of the latent vector, in the weights' fp8",
    ("kv_cache", "gemma-3-27b", "llm-d-planner"): _ALL_FULL,
    ("kv_cache", "gemma-3-27b", "hf-mem"): f"{_ALL_FULL}, as an upper bound",
    ("kv_cache", "gpt-oss-20b", "llm-d-planner"): f"{_ALL_FULL}, and the cache is sized in the weights' MXFP4",
    ("kv_cache", "gpt-oss-20b", "hf-mem"): f"{_ALL_FULL}, as an upper bound (asked for bfloat16, as it advises)",
    ("kv_cache", "qwen3-next-80b-a3b", "llm-d-planner"): _ALL_FULL,
    ("kv_cache", "qwen3-next-80b-a3b", "hf-mem"): f"{_ALL_FULL}, as an upper bound",
    ("kv_cache", "qwen3-next-80b-a3b", "kvfit"): "recurrent states in float32; right for engines that keep them so",
    ("kv_cache", "jamba-v0.1", "llm-d-planner"): _ALL_FULL,
    ("kv_cache", "jamba-v0.1", "hf-mem"): _ALL_FULL,
    ("kv_cache", "nemotron-3-nano-30b", "llm-d-planner"): _ALL_FULL,
    ("kv_cache", "nemotron-3-nano-30b", "hf-mem"): _ALL_FULL,
    ("kv_cache", "nemotron-3-nano-30b", "aiconfigurator"): _ALL_FULL,
    ("kv_cache", "mistral-7b-v0.1", "llm-d-planner"): "leaves the window out",
    ("kv_cache", "mistral-7b-v0.1", "hf-mem"): "leaves the window out",
    ("sequences", "llama-3.1-8b", "kvfit"): _NO_OVERHEAD,
    ("sequences", "qwen3-32b", "kvfit"): _NO_OVERHEAD,
    ("sequences", "qwen3-32b", "llm-d-planner"): _NOMINAL,
    ("sequences", "gpt-oss-20b", "kvfit"): f"{_STEADY}; {_NO_OVERHEAD}",
    ("sequences", "gpt-oss-20b", "aiconfigurator"): f"{_STEADY}, with weights too small",
    ("sequences", "gpt-oss-20b", "llm-d-planner"): "divides by the cache it takes for 0.398 GiB",
    ("sequences", "nemotron-3-nano-30b", "kvfit"): f"one state per sequence, no rounding; {_NO_OVERHEAD}",
    ("sequences", "nemotron-3-nano-30b", "aiconfigurator"): "divides by the cache it takes for 1.625 GiB",
    ("sequences", "nemotron-3-nano-30b", "llm-d-planner"): "divides by the cache it takes for 1.625 GiB",
    ("sequences", "mistral-7b-v0.1", "kvfit"): f"{_STEADY}; {_NO_OVERHEAD}",
    ("sequences", "mistral-7b-v0.1", "llm-d-planner"): "leaves the window out: divides by 4 GiB per sequence",
}
"""Why a peer's figure differs from kvplan's, by subject, model and peer."""

OUR_REASONS: dict[Place, str] = {
    ("kv_cache", "deepseek-v3.2"): "kvplan's logical figure counts the index key in the cache's bfloat16, as kvfit's "
    "does; the sequences it predicts for vLLM are counted with 132 B",
}
"""Why kvplan's own figure is off."""
