"""A live view of running servers, whichever engine serves: occupancy, queue, rates, latencies, and what still fits.

``kvplan top`` watches each server in a thread of its own and draws what they know, again and again.

    watch     one server, read now and then: its newest readings, or since when it does not answer
    room      how many more sequences of a length fit now: the server's free blocks, divided as the plan divides them
    gpus      memory and clocks of this machine's GPUs
    snapshot  everything that is known at one moment; a snapshot as JSON
    view      a snapshot as lines for a terminal
    session   watching, drawing, and one reading for scripts
"""
