"""What one replica does with its requests block by block, and several together behind a router.

setup      everything that the play of one replica needs
pool       blocks of a replica's KV cache: who holds them, what is found again, what is evicted
replica    one replica in time: who waits, is read and decodes
seen       what one request saw
fleet      replicas behind a router, and what they did over time
"""
