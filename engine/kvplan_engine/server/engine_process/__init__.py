"""The process that holds the engine: messages in, one frame per step out. It is the only one that imports torch.

__main__    ``python -m kvplan_engine.server.engine_process FD``: load what the first message says, then run
loading     an ``LLM`` from the API's settings, and the facts about it that the API process needs; what is neither a
            request nor a step: new settings, the prefix cache, statistics
loop        the engine's end of the socket; requests in, steps, tokens out; an end with the API process
"""
