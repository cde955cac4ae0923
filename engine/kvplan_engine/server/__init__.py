"""An OpenAI-compatible HTTP server in front of the engine: two processes, and a socket between them.

    clients -- HTTP --> API process                  <-- socket -->  engine process
                        parses, renders templates,    requests       loads the model, runs steps,
                        encodes, decodes, streams     frames         sends one frame per step

The API process never imports torch: it is started as ``python -m kvplan_engine.server`` with its options as JSON on
stdin, and starts the engine process itself.

    __main__         reads the options, starts the server, says what went wrong
    options          what the server is started with; what cannot be done, in the words of the command line
    messages         what the two processes send each other, and how it lies on the socket
    runner           the life of the server: start, serve, drain, end
    engine_process   the engine's side of the socket
    engine_client    the API's side of it: generations, each a stream of tokens
    text             encoding, decoding token by token, stop strings, chat templates
    openai           OpenAI's requests and answers, with vLLM's additions
    http             the ASGI application: routes, keys, limits, errors
    metrics          /metrics under vLLM's names
"""
