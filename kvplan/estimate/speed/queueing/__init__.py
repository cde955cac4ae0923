"""A load played against an instance: who waits, who is read, who decodes, and what each request saw.

loads     requests with lengths and moments of sending: users, a rate, or all at once
rules     how an engine composes its steps: seats, token budget, prompts first or beside decoding, admission
play      the play itself, event by event
figures   TTFT, TPOT, latency and throughput of a play: means and percentiles
"""
