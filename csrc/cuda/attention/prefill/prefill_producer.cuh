// What the two sides of prefill_wgmma.cu share, shared memory and its rings, and the side that fills them.
#pragma once

#include "prefill.cuh"
#include "../../hopper.cuh"

constexpr int KV_TILE = KVPLAN_KV_TILE;
constexpr int STAGES = KVPLAN_STAGES;
constexpr int GROUPS = 2;  // of consumers
constexpr int GROUP_ROWS = 64;
constexpr int TILE_ROWS = GROUPS * GROUP_ROWS;
constexpr int CONSUMERS = GROUPS * GROUP_THREADS;
constexpr int PANEL_COLUMNS = 64;
constexpr int PANELS = HEAD_SIZE / PANEL_COLUMNS;
constexpr int QUERY_PANEL = TILE_ROWS * PANEL_ROW_BYTES;
constexpr int KV_PANEL = KV_TILE * PANEL_ROW_BYTES;
constexpr int STAGE_BYTES = PANELS * KV_PANEL;
constexpr int PAGE_ROWS = smaller(BLOCK_SIZE, KV_TILE);  // of one box
constexpr int PAGES = KV_TILE / PAGE_ROWS;               // of a tile
constexpr int BOX_BYTES = PAGE_ROWS * PANEL_ROW_BYTES;

constexpr int CONSUMER_REGISTERS = 240, PRODUCER_REGISTERS = 24;  // a multiprocessor has 65,536

static_assert(THREADS == CONSUMERS + GROUP_THREADS, "the producer's warp group has three idle warps");
static_assert(CONSUMERS * CONSUMER_REGISTERS + GROUP_THREADS * PRODUCER_REGISTERS <= 65536);
static_assert(sizeof(Scalar) == 2 && sizeof(Cache) == 2 && HEAD_SIZE % PANEL_COLUMNS == 0 && KV_TILE == 128);
static_assert(KV_TILE % PAGE_ROWS == 0 && BLOCK_SIZE % PAGE_ROWS == 0 && PAGE_ROWS % 8 == 0 && PAGES <= WARP_LANES);

struct PrefillWgmmaParams {
    // [num_blocks, KV heads, BLOCK_SIZE, HEAD_SIZE]  of the layer; boxes of PAGE_ROWS x 64, swizzled
    TensorMap keys;
    TensorMap values;
    AttentionParams attention;
};

// The block's part of shared memory: Q, a ring of K, a ring of V, and for each stage of either two barriers.
struct Shared {
    u8* queries;  // [PANELS][TILE_ROWS][64]
    u8* keys;     // [STAGES][PANELS][KV_TILE][64]
    u8* values;   // the same
    u64* keys_here;
    u64* values_here;
    u64* keys_free;
    u64* values_free;
};

KVPLAN_INLINE Shared divide_shared(u8* memory) {
    Shared shared;
    shared.queries = memory + (PANEL_ALIGNMENT - shared_address(memory) % PANEL_ALIGNMENT) % PANEL_ALIGNMENT;
    shared.keys = shared.queries + PANELS * QUERY_PANEL;
    shared.values = shared.keys + STAGES * STAGE_BYTES;
    shared.keys_here = reinterpret_cast<u64*>(shared.values + STAGES * STAGE_BYTES);
    shared.values_here = shared.keys_here + STAGES;
    shared.keys_free = shared.values_here + STAGES;
    shared.values_free = shared.keys_free + STAGES;
    return shared;
}

KVPLAN_INLINE void make_barriers(const Shared& shared) {
    for (int stage = 0; stage < STAGES; ++stage) {
        init_barrier(shared.keys_here + stage, 1);
        init_barrier(shared.values_here + stage, 1);
        init_barrier(shared.keys_free + stage, CONSUMERS / WARP_LANES);
        init_barrier(shared.values_free + stage, CONSUMERS / WARP_LANES);
    }
    fence_barrier_init();
}

// Where in the rings a tile of KV is: its stage, and the parity of the phase in which it comes.
struct Place {
    int stage;
    u32 parity;

    KVPLAN_METHOD Place next() const {
        return stage + 1 == STAGES ? Place{0, parity ^ 1} : Place{stage + 1, parity};
    }
};

// The first position that the tile of KV from `begin` on must bring, and one past the last, relative to `begin`.
KVPLAN_INLINE int first_needed(const PrefillTile& tile, int begin) { return larger(0, tile.kv_begin - begin); }
KVPLAN_INLINE int end_needed(const PrefillTile& tile, int begin) { return smaller(KV_TILE, tile.kv_end - begin); }

// ---- the producer

// Whether this lane's page of the tile has visible tokens.
KVPLAN_INLINE bool needs_page(const PrefillTile& tile, int begin, int lane) {
    return lane < PAGES && lane * PAGE_ROWS < end_needed(tile, begin) &&
           (lane + 1) * PAGE_ROWS > first_needed(tile, begin);
}

// The block in which this lane's page of the tile lies.
KVPLAN_INLINE int block_of(const int* tables, const PrefillTile& tile, int begin, int lane,
                           const AttentionParams& params) {
    const int* table = tables + i64(tile.sequence) * params.table_stride;
    return needs_page(tile, begin, lane) ? table[begin / BLOCK_SIZE + lane * PAGE_ROWS / BLOCK_SIZE] : 0;
}

// Begins the copies of a tile of K or V, a page by each lane that has one.
KVPLAN_INLINE void copy_tile(u8* target, const TensorMap& map, const PrefillTile& tile, int begin, int block, int lane,
                             u64* here) {
    const int first = first_needed(tile, begin) / PAGE_ROWS;
    const int end = ceil_divide(end_needed(tile, begin), PAGE_ROWS);
    if (lane == 0) arrive_expecting(here, u32((end - first) * PANELS * BOX_BYTES));
    __syncwarp();
    if (!needs_page(tile, begin, lane)) return;
    KVPLAN_UNROLL
    for (int panel = 0; panel < PANELS; ++panel)
        copy_box(target + panel * KV_PANEL + lane * BOX_BYTES, map, panel * PANEL_COLUMNS, begin % BLOCK_SIZE,
                 tile.kv_head, block, here);
}

// One of the two rings as the producer fills it.
struct Ring {
    u8* stages;
    u64* here;
    u64* free;
    const TensorMap& map;
    const int* tables;
};

// Brings the tile of KV from `begin` on to its place, once that is free: at once, the first time around.
KVPLAN_INLINE void bring_tile(const Ring& ring, Place place, const PrefillTile& tile, int begin, int lane,
                              const AttentionParams& params) {
    const int block = block_of(ring.tables, tile, begin, lane, params);  // read before the wait, which is the longer one
    wait_phase(ring.free + place.stage, place.parity ^ 1);
    copy_tile(ring.stages + place.stage * STAGE_BYTES, ring.map, tile, begin, block, lane, ring.here + place.stage);
}

// K of the next tile before V of this one, in the order in which the consumers take them.
KVPLAN_INLINE void produce(const Shared& shared, const PrefillTile& tile, int lane, const PrefillWgmmaParams& params) {
    const AttentionParams& attention = params.attention;
    const Ring keys = {shared.keys, shared.keys_here, shared.keys_free, params.keys, attention.block_tables};
    const Ring values = {shared.values, shared.values_here, shared.values_free, params.values,
                         value_tables_of(attention)};
    int begin = tile.kv_begin / KV_TILE * KV_TILE;
    Place place = {0, 0};
    bring_tile(keys, place, tile, begin, lane, attention);
    for (; begin < tile.kv_end; begin += KV_TILE) {
        const Place next = place.next();
        if (begin + KV_TILE < tile.kv_end) bring_tile(keys, next, tile, begin + KV_TILE, lane, attention);
        bring_tile(values, place, tile, begin, lane, attention);
        place = next;
    }
}
