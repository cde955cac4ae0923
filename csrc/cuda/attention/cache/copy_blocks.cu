// Copies whole KV blocks, all layers of each: copy-on-write inside a pool, or to and from pinned host memory.
#include "../../types.cuh"

constexpr int THREADS = 256;
constexpr int IN_FLIGHT = 4;  // vectors that a thread reads before it writes any

struct CopyParams {
    // [blocks, block_vectors]  16-byte vectors; device memory, or pinned host memory under unified addressing
    const uint4* source;
    // [blocks, block_vectors]  may be the source; no block is both read and written
    uint4* target;
    // [pairs, 2]  source block, target block
    const i64* pairs;
    i64 block_vectors;
};

// grid (pairs, any), block THREADS; the blocks of one pair share its vectors.
KVPLAN_KERNEL(copy_blocks, CopyParams, THREADS) {
    const uint4* source = params.source + params.pairs[2 * i64(blockIdx.x)] * params.block_vectors;
    uint4* target = params.target + params.pairs[2 * i64(blockIdx.x) + 1] * params.block_vectors;
    const i64 step = i64(gridDim.y) * THREADS;
    for (i64 first = i64(blockIdx.y) * THREADS + threadIdx.x; first < params.block_vectors; first += step * IN_FLIGHT) {
        uint4 vectors[IN_FLIGHT];
        KVPLAN_UNROLL
        for (int i = 0; i < IN_FLIGHT; ++i)
            if (first + i * step < params.block_vectors) vectors[i] = load_vector<uint4>(source + first + i * step);
        KVPLAN_UNROLL
        for (int i = 0; i < IN_FLIGHT; ++i)
            if (first + i * step < params.block_vectors) store_vector<uint4>(target + first + i * step, vectors[i]);
    }
}
