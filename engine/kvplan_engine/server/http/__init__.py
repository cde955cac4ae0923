"""The ASGI application. No framework: the routes are two tables, and a chunk goes to the socket in one call.

application   routes, API keys, errors, counting requests
connection    uvicorn's protocol of a connection, written to from outside of a coroutine
upgrades      requests that would rather speak another protocol
exchange      one HTTP request and its answer: bounded body, whole answers, event streams
state         what all handlers share
generating    /v1/completions and /v1/chat/completions
prompts       from a body to prompts: encoding, chat templates, truncation
service       models, health, version, metrics, tokenizer
control       what an operator does: server info, prefix cache, runtime settings
adapters      LoRA adapters as models, loaded and unloaded at run time
watching      a client that goes away, while its answer is made
"""
