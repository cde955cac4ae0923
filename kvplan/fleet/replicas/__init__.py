"""What one replica does with its requests block by block, and several together behind a router.

setup      everything that the play of one replica needs
extents    stretches of blocks, and the queue of those that nobody holds
kept       which blocks of windows, and which states, others can find
lanes      one kind of cache groups: what is found of a prompt, and what is held
pool       blocks of a replica's KV cache: who holds them, what is found again, what is evicted
group      the sequences of one data-parallel group over such a pool
replica    one replica in time: who waits, is read and decodes
seen       what one request saw
fleet      replicas behind a router, and what they did over time
"""
