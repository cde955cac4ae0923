"""Worker processes: they hold the engine, so that the parent needs no torch and survives whatever the engine does.

``sweep``, ``profile`` and ``bench`` each start one and talk to it in JSON, one object per line, over its stdin and
stdout. What the messages say is each command's own affair (``kvplan.sweeps.worker.protocol``,
``kvplan.profiling.protocol``, ``kvplan.bench.protocol``).

    messages   a message as a line, and back
    process    the parent's end: start, send, receive with a deadline, kill; why a worker died
    channel    the worker's end: stdout kept for messages, and an end with the parent
    environment  the environment in which it finds the same kvplan and engine
    imports    torch and the engine, imported sooner
"""
