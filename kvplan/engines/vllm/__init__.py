"""vLLM (0.8 and later) as an engine of a sweep: its installation, command line, log, failures and prediction.

plugin/       a scheduler that vLLM loads: it takes smaller limits while it runs, and tells steps
failures      a log -> one of the sweep's statuses
model         what the planner expects of it
adapter       all of that as an EngineAdapter, and what a log and a metrics page say of a start; which release lies
              where, built for what; what servers are forked from; settings -> ``vllm.entrypoints.openai.api_server``;
              settings of a running server that are lowered
"""
