// Cuts one step's attention into work items, on the device: a captured graph then follows the lengths of each replay.
//
// Sequences with one new token are decode work: their visible tokens are cut into chunks, as long as they may be while
// there are still enough chunks for every block that the device runs at once. Sequences with more new tokens are
// prefill work: tiles of tile_rows (token, head of the group) rows, the tiles that see most tokens first, and parts of these
// where they are few (plan_prefill.cuh). One block does it all. Where shared_prefix.cu has found sequences with a shared prefix,
// their first item of decode is what another kernel leaves of it, and their own ones begin behind it.
#include "plan_prefill.cuh"

KVPLAN_INLINE int choose_chunk(const PlanParams& params, int* scan) {
    int tokens = 0, total;
    for (int s = int(threadIdx.x); s < params.num_sequences; s += THREADS) tokens += range_of(s, params).num_tokens;
    scan_block<THREADS>(tokens, scan, total);
    return larger(params.min_chunk, round_up(ceil_divide(total, params.target_chunks), params));
}

KVPLAN_INLINE void write_decode_items(const PlanParams& params, int sequence, const Range& range, int first_item,
                                      int num_items) {
    if (num_items == 0) return;
    const int num_shared = num_shared_items(range, params);
    const int share = round_up(ceil_divide(range.num_tokens, num_items - num_shared), params);
    if (params.first_items) params.first_items[sequence] = first_item;
    const int begin = range.first_token - num_shared * share, end = range.first_token + range.num_tokens;
    for (int i = 0; i < num_items && first_item + i < params.max_decode_items; ++i) {
        int* item = params.decode_items + i64(first_item + i) * 8;
        item[0] = i < num_shared ? -1 : sequence;
        item[1] = smaller(end, begin + i * share);
        item[2] = smaller(end, begin + (i + 1) * share);
        item[3] = first_item;
        item[4] = num_items;
        item[5] = range.query_token;
        item[6] = range.length;
        item[7] = num_shared;
    }
}

// grid (1), block THREADS.
KVPLAN_LONE_KERNEL(plan_attention, PlanParams, THREADS) {
    __shared__ int scan[THREADS];
    __shared__ Neighbours sequences;
    const bool has_prefill = params.max_prefill_items > 0;
    const int chunk = choose_chunk(params, scan);
    const int part = has_prefill && params.num_slots > 1 ? choose_part(params, scan, sequences) : 0;
    int decode_base = 0;
    PrefillPlace prefill = {};
    for (int start = 0; start < params.num_sequences; start += THREADS) {
        const int sequence = start + int(threadIdx.x);
        const Range range = range_of(sequence, params);
        const int own_items = range.is_decode ? larger(1, ceil_divide(range.num_tokens, chunk)) : 0;
        const int num_items = own_items + num_shared_items(range, params);
        int decode_total;
        const int decode_first = decode_base + scan_block<THREADS>(num_items, scan, decode_total);
        write_decode_items(params, sequence, range, decode_first, num_items);
        decode_base += decode_total;
        if (has_prefill) write_prefill_items(prefill, start, range, part, params, scan, sequences);
    }
    for (int i = decode_base + int(threadIdx.x); i < params.max_decode_items; i += THREADS)
        params.decode_items[i64(i) * 8] = -1;
    for (int i = prefill.item + int(threadIdx.x); i < params.max_prefill_items; i += THREADS)
        params.prefill_items[i64(i) * 8] = -1;
}
