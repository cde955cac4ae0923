// Sorts pairs of (row, chosen expert) by expert and cuts them into items of at most ROWS: a block for each expert.
//
// Every block counts all experts' pairs, so none waits for another. An expert's pairs stay in their order, so the items
// follow from the choices alone. Pairs whose expert is not here (-1) make no items.
#include "../scan.cuh"

constexpr int EXPERTS = KVPLAN_EXPERTS;
constexpr int ROWS = KVPLAN_ROWS;
constexpr int THREADS = 256;
constexpr int SIBLINGS = 1 << 15;  // more than an expert has items: a step of half a million rows at least

struct SortParams {
    // [num_pairs]  expert of each pair; -1: none here
    const int* experts;
    // [num_pairs]  pair numbers by expert; those without one are left out
    int* pairs;
    // [max_items, 4]  int32: expert, first place in `pairs`, how many, SIBLINGS x its number among the expert's items + how
    //   many these are; expert -1 where there is nothing to do
    int* items;
    int num_pairs;
    int max_items;
};

KVPLAN_INLINE void count_pairs(int* counts, const SortParams& params) {
    for (int e = int(threadIdx.x); e < EXPERTS; e += THREADS) counts[e] = 0;
    __syncthreads();
    for (int i = int(threadIdx.x); i < params.num_pairs; i += THREADS) {
        if (params.experts[i] >= 0) atomicAdd(&counts[params.experts[i]], 1);
    }
    __syncthreads();
}

// Writes this expert's pairs, in order, from place `first` on; a thread looks at neighbouring pairs.
KVPLAN_INLINE void place_pairs(int expert, int first, int* scan, const SortParams& params) {
    const int share = ceil_divide(params.num_pairs, THREADS), begin = int(threadIdx.x) * share;
    const int end = smaller(params.num_pairs, begin + share);
    int found = 0, total;
    for (int pair = begin; pair < end; ++pair) found += params.experts[pair] == expert;
    int place = first + scan_block<THREADS>(found, scan, total);
    for (int pair = begin; pair < end; ++pair) {
        if (params.experts[pair] == expert) params.pairs[place++] = pair;
    }
}

// grid (EXPERTS), block THREADS.
KVPLAN_KERNEL(sort_pairs, SortParams, THREADS) {
    __shared__ int counts[EXPERTS], scan[THREADS];
    const int expert = int(blockIdx.x);
    count_pairs(counts, params);
    int pairs_before = 0, items_before = 0, first, first_item;
    for (int e = int(threadIdx.x); e < expert; e += THREADS) {
        pairs_before += counts[e];
        items_before += ceil_divide(counts[e], ROWS);
    }
    scan_block<THREADS>(pairs_before, scan, first);
    scan_block<THREADS>(items_before, scan, first_item);
    if (expert == EXPERTS - 1) {
        const int num_items = first_item + ceil_divide(counts[expert], ROWS);
        for (int i = num_items + int(threadIdx.x); i < params.max_items; i += THREADS) params.items[4 * i] = -1;
    }
    const int count = counts[expert];
    if (count == 0) return;
    for (int i = int(threadIdx.x); i * ROWS < count; i += THREADS) {
        int* item = params.items + 4 * (first_item + i);
        item[0] = expert;
        item[1] = first + i * ROWS;
        item[2] = smaller(ROWS, count - i * ROWS);
        item[3] = i * SIBLINGS + ceil_divide(count, ROWS);
    }
    place_pairs(expert, first, scan, params);
}
