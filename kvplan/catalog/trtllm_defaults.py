"""What trtllm-serve sets where nothing is said (tensorrt_llm/llmapi/llm_args.py: max_batch_size, max_num_tokens)."""

from __future__ import annotations

from typing import Final

MAX_BATCH_SIZE: Final = 2048
MAX_NUM_TOKENS: Final = 8192
