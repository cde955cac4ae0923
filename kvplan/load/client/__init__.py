"""The HTTP client of a load: one request, streamed, with as little work per token as Python allows.

A client that is slower than its server measures itself, so chunks are split and counted here without a framework:
httptools parses HTTP, msgspec the few fields of a chunk that count.

    record       RequestRecord: when a request was due and sent, and when its tokens came
    exchange     one request and its answer; server-sent events: from bytes to payloads, and what a payload says
    connection   a kept connection, and the pool of them
    body         the bytes of a request
"""
