"""From a body to prompts: texts and messages are encoded, token ids are taken as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan_engine.server.http.state import ServerState
from kvplan_engine.server.openai.errors import bad_request
from kvplan_engine.server.openai.parameters import max_tokens
from kvplan_engine.server.openai.requests import ChatBody, CompletionBody, SamplingFields
from kvplan_engine.server.openai.shapes import Prompt

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
    numbers = [each for each in prompt if isinstance(each, int)]
    if not numbers:
        return [each for each in prompt if not isinstance(each, int)]
    if len(numbers) < len(prompt):
        raise bad_request("'prompt' mixes token ids with other prompts.", "prompt")
    return [numbers]


async def _completion_prompt(state: ServerState, body: CompletionBody, prompt: str | list[int]) -> Prompt:
    if isinstance(prompt, list):
        _check_tokens(prompt, state.client.model.vocab_size)
        return Prompt(_truncated(state, body, prompt), None)
    token_ids = await encode(state, prompt, add_special_tokens=body.add_special_tokens is not False)
    return Prompt(_truncated(state, body, token_ids), prompt)


def _check_tokens(token_ids: list[int], vocab_size: int) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        raise bad_request(f"A token of the prompt lies outside the vocabulary of {vocab_size:,}.", "prompt")


async def chat_prompt(state: ServerState, body: ChatBody) -> Prompt:
    """400 when the model has no chat template, or it refuses the messages."""
    text = render_chat(
        state,
        body.messages,
        add_generation_prompt=body.add_generation_prompt is not False,
        variables=body.chat_template_kwargs or {},
    )
    token_ids = await encode(state, text, add_special_tokens=bool(body.add_special_tokens))
    return Prompt(_truncated(state, body, token_ids), text)


def render_chat(
    state: ServerState,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    variables: Mapping[str, Any],
) -> str:
    """The text of ``messages``. 400 when that cannot be; TemplateFailed when the template fails."""
    if state.template is None:
        raise bad_request(state.no_template, "messages")
    if not messages:
        raise bad_request("'messages' is empty.", "messages")
    return state.template.render(
        [_plain_message(message, number) for number, message in enumerate(messages)],
        add_generation_prompt=add_generation_prompt,
        variables=variables,
    )


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
    """400 when the model has no tokenizer."""
    if state.tokenizer is None:
        raise bad_request(f"Prompts must be token ids: {state.client.model.no_tokenizer}", "prompt")
    return await state.tokenizer.encode(text, add_special_tokens=add_special_tokens)


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
