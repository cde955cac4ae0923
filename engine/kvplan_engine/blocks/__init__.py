"""Paging: the pool of KV blocks, the block tables of sequences, and what is shared between them. No tensors, no torch.

The scheduler and the offload room take and return blocks here; the model runner only reads the block tables.

    block_pool     reference counts and the free queue; which cached block is evicted next
    block_table    logical block of a sequence -> physical blocks, group by group; copy-on-write when sequences fork
    group_table    what a sequence holds, or can start from, in one group of layers
    layout         which layers share blocks, the size of a block, and where each part lies
    layout_waste   what sequences hold beside what the architecture keeps of them
    packing        units into blocks of one size
    pool_check     the invariants of the pool
    prefix_cache   full blocks found again by a chained hash of their tokens
    scaled_pages   pages of integers with a scale for each token and head
    transfers      the copies (within the pool, to and from host memory and disk) that a step begins with
"""
