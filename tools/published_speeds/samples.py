"""Lengths of samples of chats that have a name (a row's ``length_sample``), and what is set for those who send them.

Those of AccelMark (FreedomIntelligence, at 5797fc42745b): prompts are those of datasets/*/requests.jsonl, shorter than
what suites/*/suite.json says of their origin; of the longest ones only the latter is known. Answers are cut off, and
``max_model_len`` is set. vLLM's own sample of ShareGPT has pairs (chats.py).

How long answers are was counted by the runs that keep a number of requests in flight (tokens_out and requests_completed
of results/verified/*/sustained/result.json): 345 to 351 tokens in the mean with 512 at most, 205 to 213 with 256, where
those of the origin have medians of 310 and 150. As many are taken as cut off as make this the mean when the others end
anywhere before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.estimate.speed.queueing.loads import LengthDistribution, Quantiles
from published_speeds.rows import PublishedRow


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens. num_online: requests of a run with a rate, where rows have them wrong."""

    prompts: Quantiles
    answers: Quantiles
    longest_answer: int
    max_model_len: int
    num_online: int | None = None

    def lengths(self) -> tuple[LengthDistribution, LengthDistribution]:
        """Of prompts and of answers."""
        answers = LengthDistribution(0.0, "quantiles", quantiles=self.answers, longest=self.longest_answer)
        return LengthDistribution(0.0, "quantiles", quantiles=self.prompts), answers


def _ended(mean: float, longest: int) -> Quantiles:
    """Of answers that end anywhere before ``longest`` or there, with this mean."""
    return (0.0, 0.0), (2 * (1 - mean / longest), float(longest))


_CHATS: Final = ((0.0, 64.0), (0.25, 106.0), (0.5, 198.0), (0.75, 355.0), (0.9, 456.0), (1.0, 592.0))
_SHORT_CHATS: Final = ((0.0, 20.0), (0.25, 30.0), (0.5, 51.0), (0.75, 106.0), (0.9, 157.0), (1.0, 198.0))
_DOCUMENTS: Final = ((0.0, 28245.0), (0.25, 28245.0), (0.5, 28650.0), (0.75, 29210.0), (0.99, 29932.0))
SAMPLES: Final = {
    "sharegpt_standard_v1": Sample(_CHATS, _ended(347, 512), 512, 4096),
    "sharegpt_longctx_v1": Sample(_DOCUMENTS, ((0.0, 256.0),), 256, 30208, num_online=100),
    "sharegpt_edge_v1": Sample(_SHORT_CHATS, _ended(209, 256), 256, 2048),
}
"""By name. Runs of the longest prompts with a rate were of 100 requests, not of 200 as the suite says today: an H100
had answered all of them 204 s after the first one of 0.5 a second, and V100S and H20 cannot read 200 prompts in the
time they took."""


def sample_of(row: PublishedRow) -> Sample | None:
    """None for rows whose lengths are no such sample's."""
    return SAMPLES.get(row.text["length_sample"])
