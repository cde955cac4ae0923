"""The server in front of an engine: its own work on requests and tokens, in as many event loops as it has processes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.releases.vllm import VllmRelease


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A server's own work. Seconds of one event loop; ``servers``: processes with a loop each, who share the requests.

    parsing_seconds: before a request waits for anything, so that requests which were sent at one moment are all parsed
    before one goes on. request_seconds: the rest until the engine is handed it, one request after another.
    token_seconds: of each token that is streamed, between the requests. away_seconds: that a request is later while no
    loop works on it: sockets between processes, the client, what a first step prepares.
    """

    parsing_seconds: float = 0.0
    request_seconds: float = 0.0
    token_seconds: float = 0.0
    servers: int = 1
    away_seconds: float = 0.0

    @property
    def first_token_seconds(self) -> float:
        """Seconds that a lone request waits for its first token beside its step."""
        return self.seconds(1) + self.away_seconds

    def seconds(self, num_output_tokens: float) -> float:
        """Return a loop's seconds of a request with all tokens of its answer."""
        return self.parsing_seconds + self.request_seconds + self.token_seconds * num_output_tokens

    def busy_share(self, requests_per_second: float, num_output_tokens: float) -> float:
        """How much of their time the servers work on so many requests; above 1 they cannot."""
        return requests_per_second * self.seconds(num_output_tokens) / self.servers

    def shared_by(self, count: int) -> FrontEnd:
        """Return what one of ``count`` instances that share it sees: for each of its requests ``count`` come."""
        return replace(self.times(count), away_seconds=self.away_seconds)

    def times(self, factor: float) -> FrontEnd:
        """Return the front end of a host that needs ``factor`` times as long for all of it."""
        return replace(
            self,
            parsing_seconds=factor * self.parsing_seconds,
            request_seconds=factor * self.request_seconds,
            token_seconds=factor * self.token_seconds,
            away_seconds=factor * self.away_seconds,
        )


NO_FRONT_END: Final = FrontEnd()
BUSIEST: Final = 0.8
"""Share of its time that a server works on requests at most for a load to be played: beyond it the instance waits for
its server, and no published measurement tells how long."""
V1_AWAY_SECONDS: Final = 0.0056
"""What a lone prompt of at most 230 tokens waits for its first token beyond one step of its server is 9.1 ms in the
median of seven measurements with vLLM's V1 engine, 3.5 of which a server's event loop works: 7.8 and 10.1 ms (pull
request 23 of pegainfer-project/pegainfer: Qwen3-4B on an RTX 5070 Ti), 8.2, 9.1, 6.8 and 9.3 (issue 340 of
tenstorrent/tt-inference-server: Qwen3-0.6B and -1.7B on A100), 9.1 (pull request 20059 of vllm-project/vllm:
Qwen2.5-1.5B). Callers in the same process have it too, as their engine is another process."""
VLLM_FRONT_END: Final = FrontEnd(request_seconds=0.0035, token_seconds=47.5e-6, away_seconds=V1_AWAY_SECONDS)
"""From pull requests of vllm-project/vllm, none of which ``tools/score_published_speeds.py`` scores. A request with all
200 tokens of its answer costs one API server 13 ms (17546: 10,000 of ShareGPT in 131 s where 120 a second are sent, the
reason for several servers). Parsing the chat template takes 6 to 8 ms (20065) and is two thirds of what a request of
one token costs (19735: three times as many of them without), so 3.5 ms are not parsing; the rest is the tokens'.

Played with these and exponential lengths, a burst of 8,192 chats to four servers gets 780 requests/s where 740 were
measured (41181), and 1,000 at once to vLLM's first engine, which parsed no templates then, 55 where 53 were measured
(10635); with ShareGPT's own lengths the latter get 59."""
VLLM_TEMPLATE_SECONDS: Final = 0.007
"""Of a release that parses the template of each chat (``VllmRelease.parses_templates``): 6 to 8 s for 1,000 chats
"before prompts actually are started to process" (pull request 20065). 1,000 chats at once to Llama-3.1-8B (18566, May
2025) have a TTFT of 9.6 s in the mean, 9.5 s in the median and 12.7 s at p99; played on H100 SXM, 9.5, 9.6 and 12.1 s
(the request does not name the GPU, but its 30.9 s in all are those of no slower one)."""
SGLANG_AWAY_SECONDS: Final = 0.0059
"""A lone chat of 128 tokens waits 9.5 ms for its first token where a step takes 2.6, as a stand-in for the device
waits (issue 3560 of tenstorrent/tt-inference-server); 1 ms of the rest is parsing."""
SGLANG_FRONT_END: Final = FrontEnd(parsing_seconds=0.001, away_seconds=SGLANG_AWAY_SECONDS)
"""Parsing is a rough choice on 12 of gpustack's bursts of ShareGPT to SGLang 0.5, among the rows that
``tools/score_published_speeds.py`` scores: these are not held out for it. TensorRT-LLM has none."""


_HARMONY: Final = ("gpt_oss",)
"""Kinds of model whose chats vLLM has openai_harmony render, in Rust and without a template: from the first release
that has gpt-oss on (``_make_request_with_harmony``, vllm/entrypoints/openai/serving_chat.py)."""


def vllm_front_end(release: VllmRelease, *, chats: bool, groups: int = 1, model_type: str = "") -> FrontEnd:
    """Return the front end of ``vllm serve`` where nothing is said of API servers, before ``groups`` data-parallel
    groups.

    ``chats``: requests are messages (/v1/chat/completions), not prompts. ``model_type``: as the model's config has it.
    """
    is_parsed = chats and release.parses_templates and model_type not in _HARMONY
    return replace(
        VLLM_FRONT_END,
        parsing_seconds=VLLM_TEMPLATE_SECONDS if is_parsed else 0.0,
        servers=groups if release.server_per_group else 1,
        away_seconds=V1_AWAY_SECONDS if release.v1 else 0.0,  # of the first engine's nobody measured it
    )
