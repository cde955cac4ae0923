"""The ASGI application. No framework: the routes are two tables, and a chunk goes to the socket in one call.

application   routes, API keys, errors, counting requests; what pages of other servers may do
connection    uvicorn's protocol of a connection, with bounds, and written to from outside of a coroutine; requests that
              would rather speak another protocol
bounds        how much, and for how long, clients may send before their request is known
exchange      one HTTP request and its answer: bounded body, whole answers, event streams
state         what all handlers share; a request's body, in the shape that its endpoint expects
generating    /v1/completions and /v1/chat/completions, while the client is there
prompts       from a body to prompts: encoding, chat templates, truncation
service       models, health, version, metrics, tokenizer
control       what an operator does: server info, prefix cache, runtime settings, adapters as models
"""
