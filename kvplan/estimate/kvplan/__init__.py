"""The memory of kvplan's own engine, predicted from config and settings alone, to the byte (tests/agreement).

It shares no code with the engine: kvplan_engine derives the same figures from its own.

memory     ``predict``: buffers, budget, blocks, outcome; what CUDA kernels need beside them
held_weights  weights that the engine holds in few bits
scratch    what one part of a layer writes for each token
layout     blocks in which layers of all kinds lie; what each layer has to lay down
ranks      what each rank has of a model that several share; what they cannot share; what a rank keeps of a model that
           the engine only counts blocks for
graphs     how many launches each captured step holds, and what all of them take
settings   the engine's defaults and device (``KvplanSettings``, ``EngineDevice``)
"""
