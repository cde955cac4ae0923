"""Which sequences compute what in a step: continuous batching over paged memory. No torch.

The engine adds requests and the step loop asks for plans; nothing here knows tensors or values of tokens.

    scheduler           decides a step: blocks for the running sequences, preemption, what a step leaves behind
    admission           which swapped and waiting sequences join the running ones; requests that can never run;
                        the blocks for the next tokens, and how many tokens that is
    running_sequences   the ordered set of running sequences
    persistent_batch    the decoding sequences among them: rows that one clock advances
    beam_search         how the beams of a search fork and end
    statistics          what a step and an engine report: queues, blocks, fragmentation, cache hits
"""
