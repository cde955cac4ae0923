"""The bodies of requests. A field that is null counts as absent, and one that nobody knows is refused.

Names, meanings and defaults are OpenAI's, then vLLM's. Defaults are applied in ``parameters``.
"""

from __future__ import annotations

from typing import Any

import msgspec


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What completions and chat completions have in common. Fields of the last two groups are never acted upon."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    # vLLM's
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    best_of: int | None = None
    # of no effect: they concern OpenAI's own service
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    # refused unless neutral, see ``REFUSED``
    response_format: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None
    early_stopping: Any = None
    priority: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    logits_processors: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    kv_transfer_params: Any = None
    vllm_xargs: Any = None
    return_tokens_as_token_ids: Any = None
    mm_processor_kwargs: Any = None


class CompletionBody(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/completions. prompt: a text, token ids, or a list of either."""

    prompt: str | list[str | int | list[int]] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: Any = None
    prompt_embeds: Any = None


class ChatBody(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    include_reasoning: bool | None = None
    web_search_options: Any = None
    verbosity: Any = None
    chat_template: Any = None
    documents: Any = None
    echo: bool | None = None
    continue_final_message: Any = None


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /tokenize: of a text, or of messages as the chat template renders them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


_EMPTY: tuple[Any, ...] = (None, False, [], {}, "")

REFUSED: dict[str, tuple[Any, ...]] = {
    "response_format": (None, {"type": "text"}),
    "use_beam_search": _EMPTY,
    "length_penalty": (None, 1, 1.0),
    "early_stopping": _EMPTY,
    "priority": (None, 0),
    "bad_words": _EMPTY,
    "allowed_token_ids": (None,),
    "logits_processors": _EMPTY,
    "structured_outputs": _EMPTY,
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "kv_transfer_params": (None,),
    "vllm_xargs": _EMPTY,
    "return_tokens_as_token_ids": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    "suffix": _EMPTY,
    "prompt_embeds": (None,),
    "tools": _EMPTY,
    "tool_choice": (None, "none", "auto"),
    "functions": _EMPTY,
    "function_call": (None, "none", "auto"),
    "modalities": (None, [], ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "web_search_options": (None,),
    "verbosity": (None,),
    "chat_template": (None,),
    "documents": _EMPTY,
    "continue_final_message": _EMPTY,
}
"""Fields without which an answer would not be what was asked for, with the values at which they ask for nothing."""
