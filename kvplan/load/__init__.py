"""Loads any OpenAI-compatible server and says what it did, what the server says of itself, and what bound the run.

No torch and no engine. Times come from two clocks per request (due, sent), token counts from what the server counts,
and the client is watched as closely as the server: a client that was the limit is said to be.

    options    what the user asked for, checked
    target     the server: reached, asked for its models, tried with two small requests
    traffic/   what is sent and when
    client/    the HTTP client
    observed/  the client's health, the server's metrics, the verdict, the figures
    instant    a server that answers at once
    self_test  how much this client can read: the same load against that server
    sending    the part of a run that sends, on an event loop of this process
    processes/ sending from several processes at once
    run        one run: sent, watched, measured
    summary    summary.json and the keys of ``vllm bench serve``; bench.json, as ``vllm bench serve --save-detailed``
               writes it
    tolerance  how many requests may fail, and why those that did have
    session    all runs of a load, or of a search, into a run directory; a run as a row of a run directory
"""
