// What the two sides of prefill_wgmma.cu share, shared memory and its rings, and the side that fills them.
#pragma once

#include "prefill.cuh"
#include "../product_type.cuh"
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

// A cache of fp8 comes as it is to a place beside the rings, one for K and one for V, and the producer's four warps
// write it to the rings as float16.
constexpr bool WIDENS = sizeof(Cache) == 1;
constexpr int STAGED_BYTES = WIDENS ? KV_TILE * HEAD_SIZE : 0;
constexpr int BOX_COLUMNS = WIDENS ? HEAD_SIZE : PANEL_COLUMNS;
constexpr int BOX_BYTES = PAGE_ROWS * BOX_COLUMNS * int(sizeof(Cache));
constexpr int PRODUCERS = 15;  // their barrier

constexpr int CONSUMER_REGISTERS = WIDENS ? 224 : 240, PRODUCER_REGISTERS = WIDENS ? 56 : 24;

static_assert(THREADS == CONSUMERS + GROUP_THREADS, "the producer's warp group has three idle warps");
static_assert(CONSUMERS * CONSUMER_REGISTERS + GROUP_THREADS * PRODUCER_REGISTERS <= THREADS * 168);  // at launch
static_assert(sizeof(Scalar) == 2 && !HAS_SCALES && STAGES == 2 && HEAD_SIZE % PANEL_COLUMNS == 0 && KV_TILE == 128);
static_assert(KV_TILE % PAGE_ROWS == 0 && BLOCK_SIZE % PAGE_ROWS == 0 && PAGE_ROWS % 8 == 0 && PAGES <= WARP_LANES);

struct PrefillWgmmaParams {
    // [num_blocks, KV heads, BLOCK_SIZE, HEAD_SIZE]  of the layer; boxes of PAGE_ROWS x BOX_COLUMNS, 16 bits swizzled
    TensorMap keys;
    TensorMap values;
    AttentionParams attention;
};

// The block's part of shared memory: Q, a ring of K, a ring of V, and for each stage of either two barriers; for fp8 a
// tile of each as it comes, [KV_TILE][HEAD_SIZE], with a barrier.
struct Shared {
    u8* queries;  // [PANELS][TILE_ROWS][64]
    u8* keys;     // [STAGES][PANELS][KV_TILE][64]
    u8* values;   // the same
    u8* staged_keys;
    u8* staged_values;
    u64* keys_staged;
    u64* values_staged;
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
    shared.staged_keys = shared.values + STAGES * STAGE_BYTES;
    shared.staged_values = shared.staged_keys + STAGED_BYTES;
    shared.keys_staged = reinterpret_cast<u64*>(shared.staged_values + STAGED_BYTES);
    shared.values_staged = shared.keys_staged + WIDENS;
    shared.keys_here = shared.values_staged + WIDENS;
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
    if (WIDENS) {
        init_barrier(shared.keys_staged, 1);
        init_barrier(shared.values_staged, 1);
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
    constexpr int boxes = HEAD_SIZE / BOX_COLUMNS;
    const int first = first_needed(tile, begin) / PAGE_ROWS;
    const int end = ceil_divide(end_needed(tile, begin), PAGE_ROWS);
    if (lane == 0) arrive_expecting(here, u32((end - first) * boxes * BOX_BYTES));
    __syncwarp();
    if (!needs_page(tile, begin, lane)) return;
    KVPLAN_UNROLL
    for (int box = 0; box < boxes; ++box)
        copy_box(target + box * KV_PANEL + lane * BOX_BYTES, map, box * BOX_COLUMNS, begin % BLOCK_SIZE, tile.kv_head,
                 block, here);
}

// One of the two rings as the producer fills it.
struct Ring {
    u8* stages;
    u64* here;
    u64* free;
    const TensorMap& map;
    const int* tables;
    u8* staged;
    u64* is_staged;
};

// Begins the copy of the tile of KV from `begin` on, if there is one, to where fp8 lies; the first warp does.
KVPLAN_INLINE void stage_tile(const Ring& ring, const PrefillTile& tile, int begin, int block, int thread) {
    if (thread >= WARP_LANES || begin >= tile.kv_end) return;
    copy_tile(ring.staged, ring.map, tile, begin, block, thread, ring.is_staged);
}

KVPLAN_INLINE uint2 widened(u32 four) { return {Pair<Product>::from_float8(four, 0), Pair<Product>::from_float8(four, 2)}; }

// fp8 that has come becomes float16 in panels; rows that no token of the tile has become zero. A quarter warp reads and
// writes all banks once: of heads of 128 it has the first halves of one row and the second halves of its neighbour.
KVPLAN_INLINE void widen_tile(u8* target, const u8* staged, const PrefillTile& tile, int begin, int thread) {
    constexpr int chunks = HEAD_SIZE / 16;
    constexpr int rows = GROUP_THREADS / chunks;  // at once; a multiple of eight, after which the swizzling repeats
    const int first = first_needed(tile, begin), end = end_needed(tile, begin);
    const int chunk = thread % chunks, own_row = thread / chunks ^ chunk / 4;
    const int place = own_row * PANEL_ROW_BYTES + chunk % 4 * 32;
    const u8* source = staged + own_row * HEAD_SIZE + chunk * 16;
    u8* panel = target + chunk / 4 * KV_PANEL;
    u8 *first_cell = panel + swizzled_place(place), *second_cell = panel + swizzled_place(place + 16);
    KVPLAN_UNROLL_BY(4)
    for (int row = 0; row < KV_TILE; row += rows) {
        const bool wanted = row + own_row >= first && row + own_row < end;
        const uint4 raw = wanted ? load_vector<uint4>(source + row * HEAD_SIZE) : uint4{0, 0, 0, 0};
        const uint2 a = widened(raw.x), b = widened(raw.y), c = widened(raw.z), d = widened(raw.w);
        store_vector<uint4>(first_cell + row * PANEL_ROW_BYTES, uint4{a.x, a.y, b.x, b.y});
        store_vector<uint4>(second_cell + row * PANEL_ROW_BYTES, uint4{c.x, c.y, d.x, d.y});
    }
}

// Brings the tile of KV from `begin` on to its place, once that is free: at once, the first time around. thread: of the
// producer; of 16 bits there are 32, who copy, of fp8 128, who widen what has been copied and copy the next tile.
KVPLAN_INLINE void bring_tile(const Ring& ring, Place place, const PrefillTile& tile, int begin, int thread,
                              const AttentionParams& params) {
    u8* target = ring.stages + place.stage * STAGE_BYTES;
    const int copied = WIDENS ? begin + KV_TILE : begin;
    const int block = block_of(ring.tables, tile, copied, thread, params);  // read before the waits, which are longer
    if constexpr (WIDENS) {
        wait_phase(ring.is_staged, u32(place.stage));  // of two stages: the parity of the tile
        wait_phase(ring.free + place.stage, place.parity ^ 1);
        widen_tile(target, ring.staged, tile, begin, thread);
        fence_async_proxy();
        sync_some(PRODUCERS, GROUP_THREADS);
        if (thread == 0) arrive(ring.here + place.stage);
        stage_tile(ring, tile, copied, block, thread);
    } else {
        wait_phase(ring.free + place.stage, place.parity ^ 1);
        copy_tile(target, ring.map, tile, begin, block, thread, ring.here + place.stage);
    }
}

// K of the next tile before V of this one, in the order in which the consumers take them.
KVPLAN_INLINE void produce(const Shared& shared, const PrefillTile& tile, int thread,
                           const PrefillWgmmaParams& params) {
    const AttentionParams& attention = params.attention;
    const Ring keys = {shared.keys, shared.keys_here, shared.keys_free, params.keys,
                       attention.block_tables, shared.staged_keys, shared.keys_staged};
    const Ring values = {shared.values, shared.values_here, shared.values_free, params.values,
                         value_tables_of(attention), shared.staged_values, shared.values_staged};
    int begin = tile.kv_begin / KV_TILE * KV_TILE;
    Place place = {0, 0};
    if constexpr (WIDENS) {
        stage_tile(keys, tile, begin, block_of(keys.tables, tile, begin, thread, attention), thread);
        stage_tile(values, tile, begin, block_of(values.tables, tile, begin, thread, attention), thread);
    }
    bring_tile(keys, place, tile, begin, thread, attention);
    for (; begin < tile.kv_end; begin += KV_TILE) {
        const Place next = place.next();
        if (begin + KV_TILE < tile.kv_end) bring_tile(keys, next, tile, begin + KV_TILE, thread, attention);
        bring_tile(values, place, tile, begin, thread, attention);
        place = next;
    }
}
