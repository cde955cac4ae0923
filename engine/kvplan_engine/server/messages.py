"""What the API process and the engine process send each other: msgpack in frames of a length and a message.

An answer is one sample of a request. The API process numbers them: a request with ``n`` samples has the numbers
``first`` to ``first + n - 1``, so a token needs no more than its answer's number to find its way.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from kvplan_engine.requests.request import LoRARequest
from kvplan_engine.requests.sampling_params import SamplingParams

LENGTH = struct.Struct("<I")


class _Message(msgspec.Struct, array_like=True, gc=False, tag=True):
    """Encoded as an array that begins with the name of its class."""


# ---- from the API process


class LoadModel(_Message):
    """The first message: load ``model`` with these settings (amounts of memory may be text).

    cpu_bytes: memory of the device, where that is the CPU and the settings leave it open; None: as without a server.
    tells_answers: an answer's tokens are told once more when it is complete. engine: its number among several, which
    draw apart for requests without a seed.
    """

    model: str
    settings: dict[str, Any]
    cpu_bytes: int | None = None
    tells_answers: bool = False
    engine: int = 0


class Add(_Message):
    """Answer ``prompt_token_ids``, with an adapter if one is given; the answers are numbered from ``first`` on.

    cache_salt: see Request.
    """

    first: int
    prompt_token_ids: list[int]
    params: SamplingParams
    lora_request: LoRARequest | None = None
    cache_salt: str | None = None


class Abort(_Message):
    """Stop the request whose answers begin at ``first``; ``index``: only this one of its samples."""

    first: int
    index: int | None = None


class Command(_Message):
    """Something other than a request: ``name`` is one of the commands in engine_process/loading.py."""

    number: int
    name: str
    arguments: dict[str, Any]


class Stop(_Message):
    """End the process in good order."""


# ---- from the engine process


class ModelFacts(_Message):
    """What the API process has to know of a loaded model.

    tokenizer_json: of the ``tokenizers`` library; None if the model has none, and then ``no_tokenizer`` says why.
    special_tokens: by the names that chat templates use, such as bos_token.
    """

    model_id: str
    vocab_size: int
    dtype: str
    is_dummy: bool
    weight_bytes: int
    device: str
    engine_pid: int
    kernels: str | None = None
    tokenizer_json: str | None = None
    no_tokenizer: str = ""
    chat_template: str | None = None
    special_tokens: dict[str, str] = {}


class PoolFacts(_Message):
    """How the engine is configured now: changes with a reconfiguration.

    touched_bytes: of the pool, written to already, so that memory backs them.
    """

    config: dict[str, Any]
    max_model_len: int
    max_num_seqs: int
    num_blocks: int
    block_size: int
    block_bytes: int
    memory: dict[str, Any]
    touched_bytes: int = 0


class Ready(_Message):
    """The model is loaded and the pool made."""

    model: ModelFacts
    pool: PoolFacts


class Carved(_Message):
    """The memory was carved anew: counters of the pool begin at 0 again."""

    pool: PoolFacts


class Failed(_Message):
    """The engine cannot start, or cannot go on; the process ends. is_usage: other settings are the way out."""

    message: str
    hint: str | None = None
    is_usage: bool = False


class Refused(_Message):
    """The request whose answers begin at ``first`` can never run."""

    first: int
    message: str
    hint: str | None = None


class Reply(_Message):
    """What a command returned; with ``error``, the sentence that says why it failed."""

    number: int
    value: Any = None
    error: str | None = None
    hint: str | None = None


class Stats(_Message):
    """Queues, blocks and counters after a step; see StepStats and ``Engine.get_stats``. Counters since the pool.

    num_drafts, num_draft_tokens, num_accepted_tokens, accepted_per_position: see DraftCounts; the last is empty without
    speculation.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_swapped: int = 0
    num_used_blocks: int = 0
    num_free_blocks: int = 0
    num_free_cached_blocks: int = 0
    internal_fragmentation_bytes: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    recomputed_tokens: int = 0
    num_blocked_admissions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = []
    num_scheduled_tokens: int = 0
    step_seconds: float = 0.0


class Begun(_Message):
    """A request left the waiting queue, at ``seconds`` of the monotonic clock."""

    first: int
    seconds: float
    num_cached_tokens: int


class Ended(_Message):
    """An answer is complete. stop_token: the stop token it ended with, if the request named it.

    token_ids: all of its tokens, where the LoadModel asked for them.
    """

    answer: int
    reason: str
    stop_token: int | None = None
    num_preemptions: int = 0
    token_ids: list[int] = []


class TokenLogprobs(_Message):
    """Log-probabilities of an answer's new token: its own and, by token, those of its alternatives."""

    answer: int
    logprob: float
    alternatives: dict[int, float]


class PromptLogprobsMessage(_Message):
    """What is said of the prompt's tokens from the second on, before the first token of the answer ``first`` comes.

    ranks: as in PromptTokenLogprob. tops: by token, the likeliest ones and their log-probabilities, best first.
    """

    first: int
    logprobs: list[float]
    ranks: list[int]
    tops: list[dict[int, float]]


class Step(_Message):
    """A step's tokens: ``tokens[i]`` is for ``answers[i]``. seconds: the monotonic clock when they were known.

    An answer may get several, accepted drafts, in the order of its text. was_step: False where only the stats are new.
    logprobs: of the answers that asked for them, of one the first token's first.
    """

    seconds: float
    answers: list[int]
    tokens: list[int]
    stats: Stats
    was_step: bool = True
    begun: list[Begun] = []
    ended: list[Ended] = []
    logprobs: list[TokenLogprobs] = []


ToEngine = LoadModel | Add | Abort | Command | Stop
FromEngine = Step | PromptLogprobsMessage | Ready | Carved | Failed | Refused | Reply

_encoder = msgspec.msgpack.Encoder()
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def frame(message: msgspec.Struct) -> bytes:
    """``message`` as it lies on the socket: the length of what follows, then msgpack."""
    data = _encoder.encode(message)
    return LENGTH.pack(len(data)) + data


class FrameReader:
    """Cuts what arrives on a socket into messages' bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes, in order."""
        buffer = self._buffer
        if not buffer and len(data) >= LENGTH.size and LENGTH.unpack_from(data)[0] == len(data) - LENGTH.size:
            return [data[LENGTH.size :]]  # one frame, as nearly always
        buffer += data
        messages: list[bytes] = []
        start, available = 0, len(buffer)
        while available - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, start)
            end = start + LENGTH.size + length
            if end > available:
                break
            messages.append(bytes(buffer[start + LENGTH.size : end]))
            start = end
        del buffer[:start]
        return messages
