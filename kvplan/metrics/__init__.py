"""What serving engines say of themselves while they run: their metrics pages as one type, whoever serves.

``MetricsSource`` fetches and reads a server's page; ``difference`` of two readings gives the figures of the window
between them. What a server does not tell is None, never 0.

    prometheus   the text format: samples by name, without a client library
    histograms   buckets, their difference, percentiles
    reading      ServerReading: occupancy, queue, counters and latencies of a server at one moment
    page         a Prometheus page -> ServerReading; what each engine calls them
    limits       the settings a running server tells of itself: seats, tokens per step, context
    window       what happened between two readings
    http         one kept connection, and the mistakes of an address in one sentence; what such a connection takes at
                 most of an answer: bytes and seconds
    source       a server's URL -> readings; TensorRT-LLM's JSON page, and llama-server's slots beside its page ->
                 ServerReading
"""
