"""What AMD's kernels reach where no profile is there: less of the data sheet than NVIDIA's, and more time per layer.

By the kernels' own tables of tuned times (ROCm/aiter at e404860, MIT, aiter/configs; MI300X and MI355X), as shares of
the data sheet in products of 4,096 rows and more, 10th, 50th and 90th percentile:

    8-bit floats in blocks, DeepSeek-V3's shapes    MI300X  29 times   0.25  0.32  0.37
                                                    MI355X  3036       0.15  0.16  0.28
      with weights shuffled beforehand              MI355X    61       0.22  0.31  0.39
    8-bit floats with a scale per row               MI355X   135       0.26  0.33  0.47
    bfloat16                                        MI355X    15       0.41  0.50  0.53

Experts of a mixture, both products of all in one kernel, over prompts of 2,048 to 32,768 tokens (ROCm/aiter at
e4048607, tuned_fmoe tables; an expert gets 40 to 500 rows, and ranks that divide it 192 to 512 of its columns):

    activations in 16 bits                          both      47       0.15  0.19  0.26
    in 8 bits, weights in 8 or 4                    both     215       0.09  0.17  0.30
    in 4 bits                                       MI355X   154       0.07  0.12  0.19

Attention of prompts multiplies in 16 bits whatever the weights are in: AITER's assembly reaches 338 to 592 TFLOP/s on
MI300X and 613 to 1,430 on MI355X from 1,024 to 10,240 tokens (op_tests/cpp/mha/README.md there), 0.26 to 0.45 and 0.24
to 0.57 of the data sheet; Triton's, which many servers run, is 1.18 to 1.62 times as slow on MI300X
(midiareshadi.github.io/blog/attn-dsl-bench).

Experts read weights at 0.68 to 0.76 of the bandwidth on MI355X and at 0.75 to 0.89 on MI300X, which ``clocks`` has
already, but one token takes longer than its bytes by 21, 24, 28, 30 (MiniMax-M2.5), 40 and 68 us (DeepSeek-V3 over four
and eight). Products of few rows in blocks take 3 to 12 us on MI300X and 3 to 22 on MI355X, of which their bytes are 1
to 5: about 7 more each, two in a layer of usual attention and five of a latent one. Latent attention of 64 sequences
and adding up its parts take 55 and 11 us on MI325X (issue 863 of SemiAnalysisAI/InferenceX, a profile of SGLang), 57
more than the bytes.

That dense models need nothing else: Llama-3.1-70B in 8 bits over eight MI300X takes 7.45 to 7.75 ms a token with vLLM
0.10 (2,048 tokens in 15.25 and 15.88 s, AMD's "performance results" of September and October 2025), where
``clocks.BEST`` and ``clocks.USUAL`` come to 8.3 in the middle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvplan.estimate.speed.steps.work import ModelWork


@dataclass(frozen=True, slots=True)
class AmdKernels:
    """Shares of the data sheet's operations, and seconds that a layer of a kind takes beyond its bytes.

    expert_flops: in experts, by the bits of their activations. attention_flops: of the 16-bit operations.
    """

    flops: float
    eight_bit_flops: float
    expert_flops: Mapping[int, float]
    attention_flops: float
    blocks_seconds: float
    latent_blocks_seconds: float
    experts_seconds: float
    latents_seconds: float

    def share_of_flops(self, work: ModelWork) -> float:
        return self.eight_bit_flops if work.compute_dtype == "fp8" else self.flops

    def share_of_expert_flops(self, work: ModelWork) -> float:
        """Return the share of the data sheet in products of routed experts."""
        return self.expert_flops[{"fp8": 8, "int8": 8, "fp4": 4}.get(work.compute_dtype, 16)]

    def layer_seconds(self, work: ModelWork) -> float:
        """Return the seconds of all layers together."""
        others = work.num_layers - work.num_latent_layers
        found = self.experts_seconds * work.num_expert_layers + self.latents_seconds * work.num_latent_layers
        if work.speed_format == "fp8-block":
            found += self.blocks_seconds * others + self.latent_blocks_seconds * work.num_latent_layers
        return found


BEST_OF_AMD: Final = AmdKernels(
    flops=0.53,
    eight_bit_flops=0.37,
    expert_flops={16: 0.26, 8: 0.30, 4: 0.19},
    attention_flops=0.45,
    blocks_seconds=14e-6,
    latent_blocks_seconds=35e-6,
    experts_seconds=21e-6,
    latents_seconds=0.0,
)
USUAL_OF_AMD: Final = AmdKernels(
    flops=0.35,
    eight_bit_flops=0.15,
    expert_flops={16: 0.15, 8: 0.09, 4: 0.07},
    attention_flops=0.16,
    blocks_seconds=14e-6,
    latent_blocks_seconds=35e-6,
    experts_seconds=68e-6,
    latents_seconds=57e-6,
)
