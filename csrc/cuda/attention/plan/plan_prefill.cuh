// The prefill work of a step: tiles of (token, head of the group) rows, and whether the tokens that they see are cut.
//
// A tile's block attends to one tile of KV after the other. Where a step has fewer tiles than the device runs at once, as
// short queries behind long prefixes are, or a few that see far more than the others, the rest of the device would wait:
// then what a tile sees is cut into parts (prefill_parts.cuh says how they meet again). Where the cuts are follows from all
// of the step's sequences, as in decoding, so a row's result may differ in the order of its sums from one batch to another.
#pragma once

#include "plan.cuh"

// What the tiles of a step come to.
struct Load {
    int num_tiles;
    int work;     // tokens that they see, in multiples of chunk_multiple
    int longest;  // tokens that the one sees that sees most
};

// THREADS sequences, as all threads see them.
struct Neighbours {
    int num_tiles[THREADS];
    int most_tokens[THREADS];  // that a tile sees
    int num_parts[THREADS];    // of each tile, at most
    int first_item[THREADS];   // of these sequences' items
    int first_slot[THREADS];
};

// The tokens that a tile sees.
struct TileTokens {
    int first;
    int last;  // exclusive
};

KVPLAN_INLINE TileTokens tokens_of(const Range& range, int tile, const PlanParams& params) {
    if (OF_GROUPS) return {0, range.length};
    const int first_row = tile * params.tile_rows, num_rows = range.num_queries * params.group;
    const int last_row = smaller(first_row + params.tile_rows, num_rows) - 1;
    const int first_position = range.length - range.num_queries;
    const int visible = params.window > 0 ? first_position + first_row / params.group - params.window + 1 : 0;
    return {OF_GROUPS ? 0 : larger(0, visible), OF_GROUPS ? range.length : first_position + last_row / params.group + 1};
}

// No tile of the sequence sees more tokens, from the multiple on in which they begin.
KVPLAN_INLINE int most_tokens(const Range& range, const PlanParams& params) {
    if (params.window == 0) return range.length;
    return smaller(range.length, params.window + params.tile_rows / params.group + 1 + params.chunk_multiple);
}

KVPLAN_INLINE Load load_of_step(const PlanParams& params, int* scan) {
    Load own = {}, load;
    for (int s = int(threadIdx.x); s < params.num_sequences; s += THREADS) {
        const Range range = range_of(s, params);
        if (range.num_tiles == 0) continue;
        const TileTokens first = tokens_of(range, 0, params), last = tokens_of(range, range.num_tiles - 1, params);
        const int both = first.last - first.first + last.last - last.first;
        own.num_tiles += range.num_tiles;
        own.work += range.num_tiles * ceil_divide(both, 2 * params.chunk_multiple);
        own.longest = larger(own.longest, most_tokens(range, params));
    }
    scan_block<THREADS>(own.num_tiles, scan, load.num_tiles);
    scan_block<THREADS>(own.work, scan, load.work);
    load.longest = int(~smallest_of_block(~u32(own.longest), scan));
    return load;
}

// What the step's tiles are in parts of so many tokens.
struct Pieces {
    int num_items;
    int num_slots;
};

// Every thread has a `part` of its own.
KVPLAN_INLINE Pieces pieces_of(int part, const PlanParams& params, Neighbours& sequences) {
    Pieces pieces = {};
    for (int start = 0; start < params.num_sequences; start += THREADS) {
        const Range range = range_of(start + int(threadIdx.x), params);
        sequences.num_tiles[threadIdx.x] = range.num_tiles;
        sequences.most_tokens[threadIdx.x] = most_tokens(range, params);
        __syncthreads();
        for (int i = 0; i < smaller(THREADS, params.num_sequences - start); ++i) {
            if (sequences.num_tiles[i] == 0) continue;
            const int num_parts = ceil_divide(sequences.most_tokens[i], part);
            pieces.num_items += sequences.num_tiles[i] * num_parts;
            if (num_parts > 1) pieces.num_slots += sequences.num_tiles[i] * num_parts;
        }
        __syncthreads();
    }
    return pieces;
}

constexpr u32 TOO_MUCH = (1u << 24) - 1;

// How long the device takes with parts of so many tokens, in tokens of one block after the other; TOO_MUCH where that is out
// of the question. Fewer tiles than the device runs at once become rounds of parts, and a merge at the end. More tiles
// keep it busy: only those are cut that see more than every block's share of all, and the longest part counts.
KVPLAN_INLINE u32 cost_of(int part, const Pieces& pieces, const Load& load, const PlanParams& params) {
    if (pieces.num_slots > params.num_slots) return TOO_MUCH;
    if (load.num_tiles > params.target_tiles) {
        const int share = ceil_divide(load.work, params.target_tiles) * params.chunk_multiple;
        return part >= smaller(share, load.longest) ? smaller(u32(part), TOO_MUCH) : TOO_MUCH;
    }
    const int rounds = ceil_divide(pieces.num_items, params.target_tiles);
    if (pieces.num_slots == 0) return smaller(u32(rounds * part), TOO_MUCH);
    const int merge = ceil_divide(load.longest, part) * (params.min_part / 16);  // estimated: its last block reads all parts
    return smaller(u32(rounds * (part + params.min_part / 8) + merge), TOO_MUCH);
}

// The most tokens of a part. Thread i tries what cuts the longest tile into i + 1; of equal costs the fewest parts win.
KVPLAN_INLINE int choose_part(const PlanParams& params, int* scan, Neighbours& sequences) {
    const Load load = load_of_step(params, scan);
    const int own = larger(params.min_part, round_up(ceil_divide(load.longest, int(threadIdx.x) + 1), params));
    const u32 cost = cost_of(own, pieces_of(own, params, sequences), load, params);
    const int best = int(smallest_of_block(cost << 8 | threadIdx.x, scan) & 255u);
    return larger(params.min_part, round_up(ceil_divide(load.longest, best + 1), params));
}

// Item `local` of those of the sequences from `start` on: the last one that begins at or before it has it.
KVPLAN_INLINE int owner_of(int local, const Neighbours& sequences) {
    int owner = 0;
    for (int step = THREADS / 2; step > 0; step /= 2)
        if (sequences.first_item[owner + step] <= local) owner += step;
    return owner;
}

KVPLAN_INLINE void write_prefill_item(int* item, int start, int local, const PlanParams& params,
                                      const Neighbours& sequences) {
    const int owner = owner_of(local, sequences), most_parts = sequences.num_parts[owner];
    const Range range = range_of(start + owner, params);
    const int number = (local - sequences.first_item[owner]) / most_parts;
    const int part = (local - sequences.first_item[owner]) % most_parts, tile = range.num_tiles - 1 - number;
    const TileTokens tokens = tokens_of(range, tile, params);
    const int begin = most_parts == 1 ? tokens.first : round_down(tokens.first, params);
    const int share = round_up(ceil_divide(tokens.last - begin, most_parts), params);
    const int num_parts = most_parts == 1 ? 1 : ceil_divide(tokens.last - begin, share);
    item[0] = part < num_parts ? start + owner : -1;
    item[1] = tile;
    item[2] = part == 0 ? tokens.first : begin + part * share;
    item[3] = part + 1 >= num_parts ? tokens.last : begin + (part + 1) * share;
    item[4] = part;
    item[5] = num_parts;
    item[6] = sequences.first_slot[owner] + number * most_parts;
    const int first_position = range.length - range.num_queries + tile * params.tile_rows / params.group;
    item[7] = OF_GROUPS ? range.num_queries : first_position;
}

// Where the next sequences' items and slots begin.
struct PrefillPlace {
    int item;
    int slot;
};

// The items of THREADS sequences from `start` on; part: of choose_part.
KVPLAN_INLINE void write_prefill_items(PrefillPlace& place, int start, const Range& range, int part,
                                       const PlanParams& params, int* scan, Neighbours& sequences) {
    const int thread = int(threadIdx.x), tokens = most_tokens(range, params);
    const int num_parts = range.num_tiles == 0 || part == 0 ? 1 : ceil_divide(tokens, part);
    const int num_items = range.num_tiles * num_parts;
    int items_here, slots_here;
    sequences.num_parts[thread] = num_parts;
    sequences.first_item[thread] = scan_block<THREADS>(num_items, scan, items_here);
    sequences.first_slot[thread] = place.slot + scan_block<THREADS>(num_parts > 1 ? num_items : 0, scan, slots_here);
    __syncthreads();
    for (int i = thread; i < items_here && place.item + i < params.max_prefill_items; i += THREADS)
        write_prefill_item(params.prefill_items + i64(place.item + i) * 8, start, i, params, sequences);
    __syncthreads();  // nobody reads these sequences any more
    place.item += items_here;
    place.slot += slots_here;
}
