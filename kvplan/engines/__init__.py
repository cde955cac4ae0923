"""Other engines in a sweep: started as servers, loaded over HTTP, asked what they hold, and stopped again.

An ``EngineAdapter`` knows one engine: its command line, its start-up log, its words for each failure, and the planner's
prediction for it. Everything else is the same for all of them.

    interface  what an adapter is, and what goes in and out of it
"""
