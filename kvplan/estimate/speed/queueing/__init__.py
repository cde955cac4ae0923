"""A load played against an instance: who waits, who is read, who decodes, and what each request saw.

loads      requests with lengths and moments of sending: users, a rate, or all at once
rules      how an engine composes its steps: seats, token budget, prompts first or beside decoding, admission
front_end  the server before an engine: its own work on requests and tokens
sharing       what prompts begin with that was computed before, and how much of it is found on average
prefix_cache  what a pool keeps of it in a play, and what is evicted
arrivals   requests on their way: sending, and handing over by the front end
instance   who waits, reads and decodes between two steps in a group, and the tokens they hold
admission  which prompts the next step reads
play       the play itself, step by step
drafting   an engine that drafts: tokens of a step, and what the drafter's passes take
replicas   all replicas of a deployment behind their router
steps      seconds of any step of an instance
figures    TTFT, TPOT, latency and throughput of a play: means and percentiles
"""
