"""Tensor parallelism: a process for each rank, of which the first is the engine's own.

The first rank has the scheduler and samples; the others have no sequences, only a part of every layer and their part of
the KV pool. A step reaches them as one message with its index arrays, and meets theirs in the collectives of its layers
(``layers/divided.py``). So they stay in step without asking for anything.

    messages   what the first rank tells the others
    group      the first rank's end: starting the others, talking to them, who has ended; a watch for those who wait
               on a GPU meanwhile
    leading    a runner, a mover and a carver that take the others along
    following  another rank: its part of the model, and what it does on the first one's word
    __main__   the process of another rank
"""
