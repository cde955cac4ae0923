// Sums over the threads of a block, in the order of their numbers.
#pragma once

#include "platform.cuh"

// The sum over all threads before this one; `total` gets the sum over all. scan: [THREADS], shared by the block.
template <int THREADS>
KVPLAN_INLINE int scan_block(int value, int* scan, int& total) {
    const int thread = int(threadIdx.x);
    scan[thread] = value;
    __syncthreads();
    for (int step = 1; step < THREADS; step *= 2) {
        const int before = thread >= step ? scan[thread - step] : 0;
        __syncthreads();
        scan[thread] += before;
        __syncthreads();
    }
    total = scan[THREADS - 1];
    const int result = scan[thread] - value;
    __syncthreads();
    return result;
}
