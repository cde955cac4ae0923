"""From a body to prompts: texts and messages are encoded, token ids are taken as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kvplan_engine.server.http.state import ServerState
from kvplan_engine.server.openai.errors import ApiError, bad_request
from kvplan_engine.server.openai.parameters import max_tokens
from kvplan_engine.server.openai.requests import ChatBody, CompletionBody, SamplingFields, TokenizeBody
from kvplan_engine.server.openai.shapes import Prompt
from kvplan_engine.server.text.template_messages import PromptTooLong
from kvplan_engine.server.text.tokenizer import TextTokenizer, TextTooLong, most_characters

# Prompts of one completion request: each has a place in the queue and a choice in the answer.
_MOST_PROMPTS = 1024


async def completion_prompts(state: ServerState, body: CompletionBody) -> list[Prompt]:
    """400 when there is none, or a text and the model has no tokenizer."""
    given = _listed(body.prompt)
    if len(given) > _MOST_PROMPTS:
        raise bad_request(f"At most {_MOST_PROMPTS:,} prompts are possible in one request.", "prompt")
    return [await _completion_prompt(state, body, prompt) for prompt in given]


def _listed(prompt: str | list[str | int | list[int]] | None) -> list[str | list[int]]:
    """One prompt or several, as a list of prompts."""
    if prompt is None or prompt == []:
        raise bad_request("'prompt' is missing or empty.", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if int in kinds and len(kinds) > 1:
        raise bad_request("'prompt' mixes token ids with other prompts.", "prompt")
    return [prompt] if int in kinds else prompt  # type: ignore[list-item, return-value]


async def _completion_prompt(state: ServerState, body: CompletionBody, prompt: str | list[int]) -> Prompt:
    if isinstance(prompt, list):
        _check_tokens(prompt, state.client.model.vocab_size)
        token_ids = _truncated(state, body, prompt)
        return Prompt(token_ids, await _echoed(state, token_ids) if body.echo else None)
    token_ids = await _encode_prompt(state, body, prompt, add_special_tokens=body.add_special_tokens is not False)
    return Prompt(_truncated(state, body, token_ids), prompt)


async def _echoed(state: ServerState, token_ids: list[int]) -> str | None:
    """What a completion repeats of a prompt that was given as tokens. None for one that is refused anyway."""
    if state.tokenizer is None or len(token_ids) > state.client.pool.max_model_len:
        return None
    return await state.tokenizer.decode_long(token_ids)


def _check_tokens(token_ids: list[int], vocab_size: int) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        raise bad_request(f"A token of the prompt lies outside the vocabulary of {vocab_size:,}.", "prompt")


async def chat_prompt(state: ServerState, body: ChatBody) -> Prompt:
    """400 when the model has no chat template, or it refuses the messages."""
    text = await render_chat(state, body, body.messages, is_whole=body.truncate_prompt_tokens is None)
    token_ids = await _encode_prompt(state, body, text, add_special_tokens=bool(body.add_special_tokens))
    return Prompt(_truncated(state, body, token_ids), text)


async def render_chat(
    state: ServerState, body: ChatBody | TokenizeBody, messages: Sequence[Mapping[str, Any]], *, is_whole: bool
) -> str:
    """The text of ``messages``. is_whole: see ``_most_characters``.

    400 when that cannot be, or it is too long; TemplateFailed when the template fails.
    """
    if state.template is None:
        raise bad_request(state.no_template, "messages")
    if not messages:
        raise bad_request("'messages' is empty.", "messages")
    _check_size(state, [messages, body.chat_template_kwargs])
    try:
        return await state.template.render(
            [_plain_message(message, number) for number, message in enumerate(messages)],
            add_generation_prompt=body.add_generation_prompt is not False,
            variables=body.chat_template_kwargs or {},
            most_characters=_most_characters(state, is_whole=is_whole),
        )
    except PromptTooLong as problem:
        raise _too_long(state, problem.num_characters, is_whole=is_whole) from None


def _check_size(state: ServerState, conversation: Any) -> None:
    """400 for one that has far more characters than the context: most templates leave nothing out."""
    num_characters, waiting = 0, [conversation]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            num_characters += len(value)
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
    if num_characters > _most_characters(state, is_whole=False):
        raise _too_long(state, num_characters, is_whole=False)


def _plain_message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    """``message`` with its content as one text, as templates expect it: parts are joined by line breaks."""
    if not isinstance(message.get("role"), str):
        raise bad_request(f"Message {number} has no 'role'.", "messages")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return {**message, "content": content or ""}
    if not isinstance(content, list):
        raise bad_request(f"The content of message {number} is neither a text nor a list of parts.", "messages")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
            what = f"of type '{kind}'" if isinstance(kind, str) else "without a type"
            raise bad_request(f"Message {number} has a part {what}: only text is supported.", "messages")
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}


async def encode(state: ServerState, text: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of a text that may have more of them than the context. 400 when the model has no tokenizer."""
    if len(text) > _most_characters(state, is_whole=False):
        raise _too_long(state, len(text), is_whole=False)
    return await _tokenizer(state).encode(text, add_special_tokens=add_special_tokens)


async def _encode_prompt(state: ServerState, body: SamplingFields, text: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of a prompt. 400, before it is encoded, for one that has too many characters to fit."""
    if body.truncate_prompt_tokens is not None:
        return await encode(state, text, add_special_tokens=add_special_tokens)
    tokenizer, most_tokens = _tokenizer(state), state.client.pool.max_model_len
    if len(text) <= _most_characters(state, is_whole=True):
        with suppress(TextTooLong):
            return await tokenizer.encode(text, add_special_tokens=add_special_tokens, most_tokens=most_tokens)
    raise _too_long(state, len(text), is_whole=True)


def _most_characters(state: ServerState, *, is_whole: bool) -> int:
    """Most characters of a text. is_whole: its tokens must fit the context; otherwise they are cut off or counted."""
    max_model_len = state.client.pool.max_model_len
    return max_model_len * _tokenizer(state).longest_token if is_whole else most_characters(max_model_len)


def _too_long(state: ServerState, num_characters: int, *, is_whole: bool) -> ApiError:
    if not is_whole:
        most = _most_characters(state, is_whole=False)
        return bad_request(
            f"The text has {num_characters:,} characters; at most {most:,} are encoded at once.", "prompt"
        )
    return bad_request(
        f"This model's maximum context length is {state.client.pool.max_model_len} tokens. However, your prompt has "
        f"{num_characters:,} characters, which is more than so many tokens stand for. Please reduce the length of the "
        "prompt.",
        "prompt",
    )


def _tokenizer(state: ServerState) -> TextTokenizer:
    """400 when the model has none."""
    if state.tokenizer is None:
        raise bad_request(f"Prompts must be token ids: {state.client.model.no_tokenizer}", "prompt")
    return state.tokenizer


def _truncated(state: ServerState, body: SamplingFields, token_ids: list[int]) -> list[int]:
    """The last ``truncate_prompt_tokens`` tokens; -1 stands for the longest prompt that leaves room for the answer."""
    number = body.truncate_prompt_tokens
    if number is None:
        return token_ids
    if number == -1:
        number = max(1, state.client.pool.max_model_len - max(1, max_tokens(body, default=1)))
    if number < 1:
        raise bad_request("'truncate_prompt_tokens' must be -1 or at least 1.", "truncate_prompt_tokens")
    return token_ids[-number:]
