"""The memory of kvplan's own engine, predicted from config and settings alone, to the byte (tests/agreement).

It shares no code with the engine: kvplan_engine derives the same figures from its own.

memory     ``predict``: buffers, budget, blocks, outcome
held_weights  weights that the engine holds in few bits
kernel_buffers  what only CUDA kernels need beside the step's buffers
scratch    what one part of a layer writes for each token
layout     blocks in which layers of all kinds lie; ``parts``: what each layer has to lay down
ranks      what each rank has of a model that several share; ``undivided``: what they cannot share
kept_parts  what a rank keeps of a model that the engine only counts blocks for
settings   the engine's defaults and device (``KvplanSettings``, ``EngineDevice``)
graphs     what CUDA graphs of steps take; ``launches``: how many launches each holds
"""
