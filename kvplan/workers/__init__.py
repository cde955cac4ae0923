"""Worker processes: they hold the engine, so that the parent needs no torch and survives whatever the engine does.

``sweep``, ``profile`` and ``bench`` each start one and talk to it in JSON, one object per line, over its stdin and
stdout. What the messages say is each command's own affair (``kvplan.sweeps.worker.protocol``,
``kvplan.profiling.protocol``, ``kvplan.bench.options``).

    process    the parent's end: start where it finds the same kvplan, send, receive with a deadline, kill; why it died
    channel    the worker's end: stdout kept for messages, an end with the parent, quicker imports; messages as lines
"""
