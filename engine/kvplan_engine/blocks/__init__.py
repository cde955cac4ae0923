"""Paging: the pool of KV blocks, the block tables of sequences, and what is shared between them. No tensors, no torch.

The scheduler and the offload room take and return blocks here; the model runner only reads the block tables.

    block_pool     reference counts and the free queue; which cached block is evicted next; their invariants
    block_table    logical block of a sequence -> physical blocks, group by group; copy-on-write when sequences fork;
                   what sequences hold beside what the architecture keeps of them
    layout         which layers share blocks, the size of a block, and where each part lies: units into equal blocks
    prefix_cache   full blocks found again by a chained hash of their tokens
    transfers      the copies (within the pool, to and from host memory and disk) that a step begins with
"""
