"""How one instance of an engine is spread over GPUs: what a rank holds of attention, of experts and of the layers."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.settings import ServingSettings


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """The parallel sizes of one instance, as vLLM combines them (vllm/config/parallel.py; the documentation pages "Data
    Parallel Deployment" and "Expert Parallel Deployment").

        GPUs        = tensor x pipeline x data
        attention   : divided over the tensor-parallel ranks; every data-parallel group has all of it, its own KV cache
                      and requests of its own
        experts     : divided over tensor x data ranks, a slice of every expert on each, or whole experts where
                      ``enable_expert_parallel``
        layers      : divided over the pipeline stages
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False

    @staticmethod
    def of(settings: ServingSettings) -> ParallelLayout:
        return ParallelLayout(
            settings.tensor_parallel_size,
            settings.pipeline_parallel_size,
            settings.data_parallel_size,
            settings.enable_expert_parallel,
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Tensor ranks, pipeline stages and data-parallel groups."""
        return self.tensor_parallel_size, self.pipeline_parallel_size, self.data_parallel_size

    @property
    def num_gpus(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def expert_ranks(self) -> int:
        """Ranks of one stage that the experts are divided over."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def talking_ranks(self) -> int:
        """Ranks that exchange something in every layer."""
        return self.expert_ranks if self.exchanges_tokens else self.tensor_parallel_size

    @property
    def expert_groups(self) -> int:
        """How many parts the list of experts is cut into; 1 where each rank has a slice of every expert."""
        return self.expert_ranks if self.enable_expert_parallel else 1

    @property
    def expert_slices(self) -> int:
        """How many slices the inner width of an expert is cut into."""
        return self.expert_ranks // self.expert_groups

    @property
    def shared_expert_slices(self) -> int:
        """The same for shared experts, which every rank holds whole where tokens, not widths, are divided over ranks.

        vllm/config/parallel.py, use_sequence_parallel_moe: the inputs of the experts are then split by token.
        """
        is_by_token = self.enable_expert_parallel and self.tensor_parallel_size > 1 and self.data_parallel_size > 1
        return 1 if is_by_token else self.tensor_parallel_size

    @property
    def exchanges_tokens(self) -> bool:
        """Whether the groups send each other's tokens to the experts (all-gather and reduce-scatter, or all-to-all)."""
        return self.data_parallel_size > 1

    def share_of_stage(self, num_tokens: float, num_sequences: float) -> float:
        """Return what of a group's step the fullest micro-batch of its stages has.

        Micro-batches have whole sequences where none has more than a token; prompts are in as many chunks as there are
        stages, of which the last one is through some stages after its step (``queueing.play`` sees to that).
        """
        stages = self.pipeline_parallel_size
        if stages == 1 or not num_sequences:
            return 1.0 / stages
        return 1 / stages if num_tokens > num_sequences else -(-num_sequences // stages) / num_sequences

    def short_text(self) -> str:
        """``tp 8``, ``tp 8, pp 2`` or ``tp 1, dp 16, ep``; empty for one GPU."""
        sizes = (
            ("tp", self.tensor_parallel_size),
            ("pp", self.pipeline_parallel_size),
            ("dp", self.data_parallel_size),
        )
        words = [f"{name} {size}" for name, size in sizes if size > 1]
        return ", ".join([*words, "ep"] if self.enable_expert_parallel and self.num_gpus > 1 else words)
