// Products of a mixture of experts on tensor cores: the pairs of an expert in tiles of ROWS, its outputs in tiles too.
//
// A block multiplies ROWS gathered rows with WEIGHT_ROWS rows of the expert's weight, in steps of STEP inputs, STAGES of
// which are on their way to shared memory. Behind a gate half of the weight rows are the gate's and half are up's, and a
// warp has both of an output. Where an expert has few rows a tile is 16 high: what then counts is that weights are read once.
// Prompts have tiles of 128: what blocks read of the second-level cache is a third less for each product than with 64.
//
//              weight rows   0 ... 63 | 64 ... 127            without a gate   0 ... 127
//     warp of ROWS = 64      gate     | up                    outputs 0-63 and 64-127, rows 0-31 and 32-63
//
// Blocks that run together are those of all of an expert's items and the same outputs, so that a weight comes from memory
// once, however wide it is: the grid's blocks are counted anew within the items of an expert.
//
//     items of an expert     A       B                        grid, by its own order   A0 A1 A2 B0 B1 B2
//     tiles of outputs       0 1 2   0 1 2                    what they do             A0 B0 A1 B1 A2 B2
#include "mixture.cuh"
#include "../tensor_core.cuh"

constexpr int WARPS = ROWS == 128 ? 8 : 4;
constexpr int THREADS = WARPS * WARP_LANES;
constexpr int WEIGHT_ROWS = 128;
constexpr int OUTPUTS = WEIGHT_ROWS / HALVES;  // of a block
constexpr int STEP = 64;
constexpr int STAGES = KVPLAN_STAGES;
constexpr int PITCH = STEP * 2 + 16;  // bytes of a row in shared memory; an odd number of vectors avoids bank conflicts
constexpr int STAGE_BYTES = (ROWS + WEIGHT_ROWS) * PITCH;
constexpr int WARPS_ACROSS = ROWS == 64 ? 2 : 4;  // warps that share the outputs; the others share the rows
constexpr int ROW_TILES = ROWS * WARPS_ACROSS / WARPS / 16;
constexpr int COLUMN_TILES = WEIGHT_ROWS / WARPS_ACROSS / 8;
constexpr int ROWS_PER_PASS = THREADS / (STEP / 8);  // rows that all threads copy at once
constexpr int COPIES = (ROWS + WEIGHT_ROWS) / ROWS_PER_PASS;
constexpr int ROW_COPIES = ROWS / ROWS_PER_PASS;

constexpr int SIBLINGS = 1 << 15;  // as in mixture_sort.cu

static_assert(ROWS == 16 || ROWS == 64 || ROWS == 128);

struct Place {
    int item;
    int tile;  // of outputs
};

// What this block does; of its grid's own item only the expert is the same.
KVPLAN_INLINE Place place_of(const ProductParams& params) {
    const int tiles = int(gridDim.x), own = int(blockIdx.y);
    int first = 0, count = int(gridDim.y);
    if (params.items != nullptr) {
        count = params.items[4 * own + 3] % SIBLINGS;
        first = own - params.items[4 * own + 3] / SIBLINGS;
    }
    const int number = (own - first) * tiles + int(blockIdx.x);
    return {first + number % count, number / count};
}

// Where this thread's vectors come from: one vector of several rows.
struct Sources {
    const Scalar* rows[COPIES];  // moved to the vector; null: a row that does not exist
    int input;                   // of the vector, within a step
};

KVPLAN_INLINE Sources sources_of(const Item& item, int first_output, const ProductParams& params) {
    Sources sources;
    sources.input = int(threadIdx.x) % (STEP / 8) * 8;
    const int own = int(threadIdx.x) / (STEP / 8), end = params.first_output + params.num_outputs;
    KVPLAN_UNROLL
    for (int c = 0; c < COPIES; ++c) {
        const int row = c * ROWS_PER_PASS + own;
        if (c < ROW_COPIES) {
            sources.rows[c] = row < item.count ? input_row(pair_of(item, row, params), params) : nullptr;
        } else {
            const int half = (row - ROWS) / OUTPUTS, output = first_output + (row - ROWS) % OUTPUTS;
            sources.rows[c] = output < end ? weight_row(item.expert, half, output, params) : nullptr;
        }
    }
    return sources;
}

KVPLAN_INLINE void begin_step(u8* stage, const Sources& sources, int step, const ProductParams& params) {
    const int input = step * STEP + sources.input;
    u8* target = stage + int(threadIdx.x) / (STEP / 8) * PITCH + sources.input * 2;
    KVPLAN_UNROLL
    for (int c = 0; c < COPIES; ++c) {
        const bool wanted = sources.rows[c] != nullptr && input < params.inputs;
        const void* source = wanted ? sources.rows[c] + input : params.weight;
        copy_async_16(target + c * ROWS_PER_PASS * PITCH, source, wanted);
    }
}

struct Tile {
    float sums[ROW_TILES][COLUMN_TILES][4];
};

// The warp's first row of the inputs in shared memory, and of the weights for one of its column tiles.
KVPLAN_INLINE int own_first_row(int warp) { return warp / WARPS_ACROSS * ROW_TILES * 16; }

KVPLAN_INLINE int own_output(int warp, int column_tile) {
    constexpr int TILES = COLUMN_TILES / HALVES;
    return warp % WARPS_ACROSS * TILES * 8 + column_tile % TILES * 8;
}

KVPLAN_INLINE int own_weight_row(int warp, int column_tile) {
    return column_tile / (COLUMN_TILES / HALVES) * OUTPUTS + own_output(warp, column_tile);
}

KVPLAN_INLINE void multiply_step(Tile& tile, const u8* stage, int warp, int lane) {
    const int matrix = lane / 8, row = lane % 8;
    const u8* weights = stage + ROWS * PITCH;
    KVPLAN_UNROLL
    for (int k = 0; k < STEP; k += 16) {
        u32 a[ROW_TILES][4];
        KVPLAN_UNROLL
        for (int i = 0; i < ROW_TILES; ++i) {
            const int from = own_first_row(warp) + i * 16 + matrix % 2 * 8 + row;
            load_matrix_x4(a[i], stage + from * PITCH + (k + matrix / 2 * 8) * 2);
        }
        KVPLAN_UNROLL
        for (int j = 0; j < COLUMN_TILES; j += 2) {
            u32 b[4];
            const int from = own_weight_row(warp, j) + matrix / 2 * 8 + row;
            load_matrix_x4(b, weights + from * PITCH + (k + matrix % 2 * 8) * 2);
            KVPLAN_UNROLL
            for (int i = 0; i < ROW_TILES; ++i) {
                const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
                multiply_accumulate<Scalar>(tile.sums[i][j], a[i], first);
                multiply_accumulate<Scalar>(tile.sums[i][j + 1], a[i], second);
            }
        }
    }
}

// Two neighbouring outputs. Those of Scalar are whole vectors, so that either both exist or neither.
KVPLAN_INLINE void store_two(Out* target, float first, float second, bool has_second) {
    if constexpr (sizeof(Out) == 2) {
        store_vector<u32>(target, Pair<Scalar>::pack(first, second));
    } else {
        target[0] = from_float<Out>(first);
        if (has_second) target[1] = from_float<Out>(second);
    }
}

KVPLAN_INLINE void store_tile(const Tile& tile, const Item& item, int first_output, int warp, int lane,
                              const ProductParams& params) {
    constexpr int TILES = COLUMN_TILES / HALVES;
    const int end = params.first_output + params.num_outputs;
    KVPLAN_UNROLL
    for (int i = 0; i < ROW_TILES * 2; ++i) {
        const int row = own_first_row(warp) + i * 8 + lane / 4;
        if (row >= item.count) continue;
        Out* out = static_cast<Out*>(params.out) + pair_of(item, row, params) * params.out_stride - params.first_output;
        KVPLAN_UNROLL
        for (int j = 0; j < TILES; ++j) {
            const int output = first_output + own_output(warp, j) + lane % 4 * 2;
            if (output >= end) continue;
            const bool has_second = output + 1 < end;
            float results[2];
            KVPLAN_UNROLL
            for (int e = 0; e < 2; ++e) {
                const int place = smaller(output + e, end - 1);
                const float product = tile.sums[i / 2][j][i % 2 * 2 + e] + bias_of(item.expert, 0, place, params);
                float up = 0.0f;
                if constexpr (IS_GATED)
                    up = tile.sums[i / 2][j + TILES][i % 2 * 2 + e] + bias_of(item.expert, 1, place, params);
                results[e] = finish(product, up, params.limit);
            }
            store_two(out + output, results[0], results[1], has_second);
        }
    }
}

// grid (ceil(num_outputs / OUTPUTS), items), block THREADS, dynamic shared memory of STAGES * STAGE_BYTES.
KVPLAN_KERNEL(expert_product, ProductParams, THREADS) {
    KVPLAN_DYNAMIC_SHARED(shared);
    if (item_of(int(blockIdx.y), params).expert < 0) return;
    const Place place = place_of(params);
    const Item item = item_of(place.item, params);
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    const int first_output = params.first_output + place.tile * OUTPUTS;
    const int num_steps = ceil_divide(params.inputs, STEP);
    const Sources sources = sources_of(item, first_output, params);
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < num_steps) begin_step(shared + step * STAGE_BYTES, sources, step, params);
        commit_copies();
    }
    Tile tile = {};
    for (int step = 0; step < num_steps; ++step) {
        wait_copies<STAGES - 2>();
        __syncthreads();  // everybody's copies have landed, and nobody reads the stage that is filled next
        const int next = step + STAGES - 1;
        if (next < num_steps) begin_step(shared + next % STAGES * STAGE_BYTES, sources, next, params);
        commit_copies();
        multiply_step(tile, shared + step % STAGES * STAGE_BYTES, warp, lane);
    }
    store_tile(tile, item, first_output, warp, lane, params);
}
