"""The worker of a profile: it holds the engine and notes every step. Only this process imports the engine.

process      the worker's main: one order, one result
recording    the requests served under the recorder's eyes, and torch's allocator history on a GPU; what an engine's
             observer notes of each step
"""
