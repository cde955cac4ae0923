"""``LLM``: prompts as text in, answers as text out. Names and defaults follow vLLM's offline interface."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from types import NoneType
from typing import Any

from kvplan_engine.checkpoints.hub import ModelSource, resolve_source
from kvplan_engine.checkpoints.tokenizer import has_tokenizer, load_tokenizer
from kvplan_engine.config import EngineConfig, knobs
from kvplan_engine.engine import Engine
from kvplan_engine.errors import EngineError
from kvplan_engine.requests.beams import BeamSearchOutput, BeamSearchParams, beam_output
from kvplan_engine.requests.chat import Conversation, chat_prompt, conversations
from kvplan_engine.requests.detokenizer import answer_text
from kvplan_engine.requests.outputs import CompletionOutput, PlainOutputs, RequestMetrics, RequestOutput, StepOutput
from kvplan_engine.requests.request import LoRARequest, Request
from kvplan_engine.requests.request import Sequence as TokenSequence
from kvplan_engine.requests.sampling_params import SamplingParams, checked_token_ids
from kvplan_engine.requests.status import FinishReason

# Requests that ``LLM`` answers together: steps until all are answered, progress, and when what happened.


class OfflineRun:
    """``requests``: in the order in which they were added."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._first: dict[Request, float] = {}
        self._last: dict[Request, float] = {}
        self._epoch_seconds = time.time() - time.perf_counter()

    def add(self, request: Request) -> None:
        self.requests.append(request)

    def steps(self, engine: Engine, use_tqdm: bool | Callable[..., Any]) -> None:
        """Step until all are answered. use_tqdm: see ``LLM.generate``."""
        with _bar(use_tqdm)(total=len(self.requests), desc="Processed prompts", dynamic_ncols=True) as bar:
            shown = 0
            while engine.has_unfinished_requests():
                if number := self._note(engine.step()):
                    bar.update(number)
                    shown += number
            bar.update(len(self.requests) - shown)  # searches end without an output that says so

    def _note(self, outputs: Sequence[StepOutput]) -> int:
        """Take the time of each request's tokens. Returns how many requests ended."""
        now = time.perf_counter()
        if isinstance(outputs, PlainOutputs):
            sequences, ended = outputs.sequences, [outputs.sequences[row] for row in outputs.reasons]
        else:
            sequences = [output.sequence for output in outputs]
            ended = [output.sequence for output in outputs if output.finished]
        for sequence in sequences:
            self._first.setdefault(sequence.request, now)
            self._last[sequence.request] = now
        return sum(request.is_finished for request in {sequence.request for sequence in ended})

    def metrics(self, request: Request) -> RequestMetrics:
        """Times of one that is answered."""
        arrival = request.arrival_seconds
        first = self._first.get(request, arrival)
        scheduled = request.first_scheduled_seconds
        return RequestMetrics(
            arrival_time=self._epoch_seconds + arrival,
            queued_ts=arrival,
            scheduled_ts=arrival if scheduled is None else scheduled,
            first_token_ts=first,
            last_token_ts=self._last.get(request, first),
            first_token_latency=first - arrival,
            num_generation_tokens=sum(len(sequence.output_token_ids) for sequence in request.sequences),
            num_preemptions=request.num_preemptions,
        )


def _bar(use_tqdm: bool | Callable[..., Any]) -> Callable[..., Any]:
    """What makes the bar. True: one that only a terminal shows."""
    if callable(use_tqdm):
        return use_tqdm
    from tqdm.auto import tqdm

    return partial(tqdm, disable=None if use_tqdm else True)


logger = logging.getLogger("kvplan_engine")

Prompt = str | Mapping[str, Any]

_PROMPTS_HINT = "give a text, a list of texts, or a list of {'prompt_token_ids': [...]}"
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?b|b|)\s*", re.IGNORECASE)


class LLM:
    """A model ready to answer prompts.

    Its arguments are the settings of :class:`EngineConfig`, which ``kvplan_engine.config.describe_knobs()`` explains;
    those in bytes also take text like ``"4GiB"``. Raises EngineError or one of its subclasses when the engine cannot
    start. A context manager: leaving it closes the engine.

    Calls from several threads queue: one is served after the other, each with its whole batch.
    """

    def __init__(self, model: Any, **settings: Any) -> None:
        config = EngineConfig(model=model, **_checked(_without_gguf(model, settings)))
        self._source: ModelSource = resolve_source(model, config.load_format)
        self._tokenizer: Any = None
        self._request_numbers = count()
        # Reentrant: a signal handler may close the engine in the middle of an answer.
        self._serving = threading.RLock()
        self.engine = Engine(config, source=self._source.loadable, tokenizer=_LazyTokenizer(self))

    def close(self) -> None:
        """Free all memory (see :meth:`Engine.close`). Any later use is an EngineError, except closing again."""
        with self._serving:
            self.engine.close()
            self._tokenizer = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- text

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer (transformers); EngineError if the model has none."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._source.tokenizer_path)
        return self._tokenizer

    @property
    def _has_tokenizer(self) -> bool:
        return has_tokenizer(self._source.tokenizer_path)

    # ---- requests

    def generate(
        self,
        prompts: str | Sequence[Prompt] | Prompt,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer every prompt; outputs are in the order of the prompts.

        prompts: a text, a list of texts, or a list of ``{"prompt_token_ids": [...]}``. With a ``"cache_salt"`` in it, a
        prompt shares cached prefixes only with those that have the same one. sampling_params, lora_request: one for
        all, or one for each. use_tqdm: whether a terminal shows progress, or what makes the bar. EngineError when one
        of them can never run; then none is started.
        """
        prompts = _listed(prompts)
        given = SamplingParams() if sampling_params is None else sampling_params
        params = _per_prompt(given, SamplingParams, len(prompts), "sampling parameters")
        adapters = _per_prompt(lora_request, (LoRARequest, NoneType), len(prompts), "adapters")
        work = [
            (
                partial(self.engine.add_request, lora_request=adapter, cache_salt=_cache_salt(prompt)),
                prompt,
                own,
            )
            for prompt, own, adapter in zip(prompts, params, adapters, strict=True)
        ]
        with self._serving:
            run = self._run_all(work, use_tqdm)
            return [self._output(request, run) for request in run.requests]

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, each a list of ``{"role": ..., "content": ...}``.

        chat_template: in place of the model's own. The others are as for :meth:`generate` and transformers'
        ``apply_chat_template``. EngineError where there is no template, or where it refuses the messages.
        """
        options = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            **(chat_template_kwargs or {}),
        }
        listed = conversations(messages)
        self._refuse_noise()
        prompts = [chat_prompt(self.tokenizer, each, **options) for each in listed]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer, of transformers. EngineError where it has none."""
        return self.tokenizer

    def beam_search(
        self,
        prompts: str | Sequence[Prompt] | Prompt,
        params: BeamSearchParams | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[BeamSearchOutput]:
        """The likeliest answers to every prompt, best first, as transformers' beam search finds them.

        prompts, use_tqdm: as for :meth:`generate`; all are searched at the same time.
        """
        prompts = _listed(prompts)
        params = BeamSearchParams() if params is None else params
        if not isinstance(params, BeamSearchParams):
            raise EngineError(f"a beam search needs BeamSearchParams, got {type(params).__name__}.")
        with self._serving:
            add = self.engine.add_beam_search
            run = self._run_all(
                [(partial(add, cache_salt=_cache_salt(prompt)), prompt, params) for prompt in prompts], use_tqdm
            )
            tokenizer = self.tokenizer if self._has_tokenizer else None
            return [beam_output(request.beams, tokenizer) for request in run.requests if request.beams is not None]

    def _run_all(
        self, work: Sequence[tuple[Callable[..., Request], Prompt, Any]], use_tqdm: bool | Callable[..., Any]
    ) -> OfflineRun:
        """Queue every prompt with its method of the engine, and step until all are answered. Runs all or none."""
        run = OfflineRun()
        try:
            encoded = [self._encode(prompt) for _, prompt, _ in work]
            for (add, _, params), (tokens, text) in zip(work, encoded, strict=True):
                run.add(add(str(next(self._request_numbers)), tokens, params, prompt=text))
            run.steps(self.engine, use_tqdm)
        except BaseException:
            for request in run.requests:
                self.engine.abort(request.request_id)
            raise
        return run

    def _encode(self, prompt: Prompt) -> tuple[list[int], str | None]:
        """The tokens of a prompt, and its text where it has one. EngineError for what is no prompt."""
        if isinstance(prompt, Mapping):
            text = prompt.get("prompt")
            if text is not None and not isinstance(text, str):
                raise EngineError(f"the text of a prompt must be a text, got {type(text).__name__}.")
            if prompt.get("prompt_token_ids") is not None:
                return list(checked_token_ids("prompt_token_ids", prompt["prompt_token_ids"])), text
        else:
            text = prompt
        if not isinstance(text, str):
            raise EngineError(
                f"a prompt must be a text or {{'prompt_token_ids': [...]}}, got {type(prompt).__name__}.",
                hint=_PROMPTS_HINT,
            )
        self._refuse_noise()
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            raise EngineError(f"a prompt has half of a surrogate pair at character {problem.start:,}.") from None
        return self.tokenizer.encode(text), text

    def _refuse_noise(self) -> None:
        if self.engine.model.is_dummy:
            raise EngineError(
                "this model has dummy weights, so its answer to a text would be noise.",
                hint="use a directory with weights, or prompts as {'prompt_token_ids': [...]} to measure speed",
            )

    def _output(self, request: Request, run: OfflineRun) -> RequestOutput:
        completions = [self._completion(sequence) for sequence in sorted(request.sequences, key=lambda s: s.index)]
        gathered = request.prompt_logprobs
        return RequestOutput(
            request.request_id,
            request.prompt,
            request.prompt_token_ids,
            request.num_cached_tokens,
            completions,
            prompt_logprobs=None if gathered is None else gathered.by_token(request.prompt_token_ids),
            metrics=run.metrics(request),
        )

    def _completion(self, sequence: TokenSequence) -> CompletionOutput:
        wants_logprobs = sequence.request.params.logprobs is not None
        return CompletionOutput(
            index=sequence.index,
            text=self._text(sequence),
            token_ids=sequence.output_token_ids,
            cumulative_logprob=sequence.cumulative_logprob if wants_logprobs else None,
            logprobs=sequence.logprobs if wants_logprobs else None,
            finish_reason=sequence.finish_reason.value if sequence.finish_reason else None,
            stop_reason=sequence.stop_match,
        )

    def _text(self, sequence: TokenSequence) -> str:
        if not self._has_tokenizer:
            return ""
        if sequence.detokenizer is not None:  # it searched for stop strings and cut the text at the first
            if not isinstance(sequence.stop_match, str):
                sequence.detokenizer.flush()
            return sequence.detokenizer.text
        token_ids = sequence.output_token_ids
        if sequence.finish_reason is FinishReason.STOP:
            token_ids.pop()  # the token that ended the answer is not part of its text
        return answer_text(self.tokenizer, sequence.request.prompt_token_ids, token_ids)

    def get_stats(self) -> dict[str, Any]:
        """See :meth:`Engine.get_stats`."""
        return self.engine.get_stats()


def _cache_salt(prompt: Prompt) -> str | None:
    """EngineError for one that is no text, or empty: it would look as if it kept prompts apart."""
    salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
    if salt is not None and not (isinstance(salt, str) and salt):
        raise EngineError(f"cache_salt must be a text that is not empty, got {salt!r}.")
    return salt


class _LazyTokenizer:
    """The tokenizer of ``llm``, loaded when the first stop string needs it."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def decode(self, token_ids: list[int], **options: Any) -> str:
        text: str = self._llm.tokenizer.decode(token_ids, **options)
        return text


def _listed(prompts: Any) -> Sequence[Prompt]:
    """One prompt or several as a list. EngineError for anything else."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence):
        raise EngineError(f"prompts must be a text or a list, got {type(prompts).__name__}.", hint=_PROMPTS_HINT)
    return prompts


def _per_prompt(given: Any, kind: type | tuple[type, ...], num_prompts: int, what: str) -> list[Any]:
    """One of ``kind`` for each prompt, from one for all or one for each."""
    if isinstance(given, kind):
        return [given] * num_prompts
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise EngineError(f"{what} cannot be of type {type(given).__name__}.", hint="give one for all, or one for each")
    if len(given) != num_prompts:
        raise EngineError(f"{num_prompts} prompts need as many {what}, got {len(given)}.")
    for each in given:
        if not isinstance(each, kind):
            raise EngineError(f"{what} cannot be of type {type(each).__name__}.")
    return list(given)


def _without_gguf(model: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` without quantization="gguf", by which vLLM is told that ``model`` is a GGUF file: a file says so."""
    if settings.get("quantization") != "gguf":
        return settings
    if not str(model).endswith(".gguf"):
        raise EngineError("quantization 'gguf' is for a .gguf file.", hint="name the file as model")
    return settings | {"quantization": None}


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` with amounts of memory as numbers; EngineError when one is unknown."""
    declared = knobs()
    unknown = sorted(settings.keys() - declared.keys())
    if unknown:
        raise EngineError(f"unknown setting {', '.join(unknown)}.", hint="one of " + ", ".join(declared))
    return {
        name: _parse_bytes(name, value) if declared[name].unit == "bytes" and isinstance(value, str) else value
        for name, value in settings.items()
    }


def _parse_bytes(name: str, text: str) -> int:
    match = _BYTES.fullmatch(text)
    if match is None:
        raise EngineError(f"{name} '{text}' is not an amount of memory.", hint="write it like 4GiB or 4GB")
    unit = match[2].lower()
    base = 1024 if "i" in unit else 1000
    return int(float(match[1]) * base ** " kmgt".index(unit[0] if unit and unit != "b" else " "))
