// y = x W^T for up to 16 rows of x and a weight as it was published, and what follows the product: a bias, an activation and
// a gate, or a residual. Such a step is done when its weights have come, so this kernel is about nothing but loading them.
//
// A block takes TILES tiles of 16 rows of the weight; its warps, and the blocks of grid y, share the inputs. As it does
// not matter in which order inputs are added up, lane 4 g + t takes the same 8 neighbours of rows g and g + 8 of a tile and
// of row g of x, and these are its part of two mma. So each lane reads from shared memory what it has copied there itself:
// no warp waits for another before the sums are done, and how much is on its way is decided here instead of by a compiler.
//
//     inputs of a chunk    lane t = 0      | 1               | 2    | 3
//     of its first mma     0 1 2 3         | 8 9 10 11       | ...
//     of its second one    4 5 6 7         | 12 13 14 15     | ...
//
// With a gate, rows g and g + 8 of a tile are a gate's and its up's, half of the weight apart, so one lane has the sums of both.
//
// Sums are float32. What an output's is made of, and in which order, follows from the inputs and grid y alone: a row's
// results are the same in every batch of up to 16, wherever in it the row stands.
#include "../activate.cuh"
#include "../tensor_core.cuh"
#include "skinny.cuh"

using Scalar = KVPLAN_SCALAR;
constexpr int ROWS = KVPLAN_ROWS;  // of x at most: 8 or 16
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_LANES;
constexpr int ROW_TILES = ROWS / 8;
constexpr int TILES = ROW_TILES;         // with more rows of x more of the weight, so that x is read less often
constexpr int WEIGHT_ROWS = TILES * 16;  // of a block
constexpr int OUTPUTS = WEIGHT_ROWS / HALVES;
constexpr int PIECE = 8;                      // inputs in 16 bytes
constexpr int CHUNK = 4 * PIECE;              // inputs of a warp at a time, of each row
constexpr int SPAN = 4 * CHUNK;               // inputs that a warp adds up before it goes on behind those of the others
constexpr int CHUNKS = SPAN / CHUNK / TILES;  // of a step
constexpr int STEP = CHUNKS * CHUNK;
constexpr int PIECES = CHUNKS * TILES * 2;  // of the weight that a lane has of a step: 4 KiB of a warp
constexpr int STAGES = 4;                   // steps that are on their way to shared memory
constexpr int SUMS = WEIGHT_ROWS * ROWS;
constexpr int AHEAD = 3072;  // inputs of each row that are asked for while the kernel before this one ends

struct SkinnyParams {
    // [rows, inputs]  Scalar, rows x_stride elements apart and at multiples of 16 bytes
    const void* x;
    // [HALVES * outputs, inputs]  Scalar; inputs are whole vectors, from a multiple of 16 bytes on
    const void* weight;
    // [HALVES * outputs]  Scalar; null without a bias
    const void* bias;
    // [rows, outputs]  Scalar, rows residual_stride elements apart, added to what is stored; may be out; null without one
    const void* residual;
    // [rows, outputs]  Scalar, rows out_stride elements apart
    void* out;
    // [gridDim.x, gridDim.y, SUMS]  float32; not read where gridDim.y is 1
    float* parts;
    // [gridDim.x]  int32, how many blocks of grid y are done; all zero between launches
    int* finished;
    i64 x_stride;
    i64 residual_stride;
    i64 out_stride;
    int inputs;
    int outputs;
    int rows;
    int spans;  // of a block of grid y
    int is_early;  // whether the kernel before this one may still run
};

// Where a lane reads its part of a step: the weight's rows, x's, and how many inputs of its block are left from there on.
struct Source {
    const Scalar* weight[TILES * 2];
    const Scalar* x[ROW_TILES];
    int left;
};

union Piece {
    uint4 vector;
    u32 pairs[PIECE / 2];
};

// What a warp has of a step: of chunk c and rows 8 i + g of the tiles in pieces[c * TILES * 2 + i][lane].
struct Stage {
    Piece pieces[PIECES][WARP_LANES];
};

// Where a block's sums come together: number row * WEIGHT_ROWS + weight row of `totals`.
struct Merged {
    float of_warps[WARPS][TILES * ROW_TILES * 4][WARP_LANES];
    float totals[SUMS];
    bool is_last;
};

static_assert(sizeof(Merged) <= WARPS * STAGES * sizeof(Stage), "sums come where the weight was");

// Row `row` of the block's tiles, the last output's where there is none.
KVPLAN_INLINE const Scalar* row_of_weight(int row, const SkinnyParams& params) {
    const int number = IS_GATED ? row / 16 * 8 + row % 8 : row, half = IS_GATED ? row % 16 / 8 : 0;
    const int output = smaller(int(blockIdx.x) * OUTPUTS + number, params.outputs - 1);
    return static_cast<const Scalar*>(params.weight) + (i64(half) * params.outputs + output) * params.inputs;
}

// Of the first step.
KVPLAN_INLINE Source source_of(const SkinnyParams& params, int warp, int lane) {
    const int begin = int(blockIdx.y) * params.spans * SPAN, own = warp * SPAN + lane % 4 * PIECE;
    Source source;
    KVPLAN_UNROLL
    for (int i = 0; i < TILES * 2; ++i) source.weight[i] = row_of_weight(i * 8 + lane / 4, params) + begin + own;
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r) {
        const int row = smaller(r * 8 + lane / 4, params.rows - 1);
        source.x[r] = static_cast<const Scalar*>(params.x) + row * params.x_stride + begin + own;
    }
    source.left = smaller(params.spans * SPAN, params.inputs - begin) - own;
    return source;
}

KVPLAN_INLINE void advance(Source& source, int inputs) {
    KVPLAN_UNROLL
    for (int i = 0; i < TILES * 2; ++i) source.weight[i] += inputs;
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r) source.x[r] += inputs;
    source.left -= inputs;
}

// Inputs from step `number` to the next one: the rest of the span, or the warp's next span.
KVPLAN_INLINE int inputs_to_next(int number) {
    return number % TILES + 1 < TILES ? STEP : WARPS * SPAN - (TILES - 1) * STEP;
}

KVPLAN_INLINE void begin_weights(Stage& stage, const Source& source, int lane) {
    KVPLAN_UNROLL
    for (int p = 0; p < PIECES; ++p) {
        const int chunk = p / (TILES * 2) * CHUNK;
        copy_async_16(&stage.pieces[p][lane], source.weight[p % (TILES * 2)] + chunk, chunk < source.left);
    }
}

struct Sums {
    float values[TILES][ROW_TILES][4];
};

// A lane's part of a step of x; zeros behind the last step.
struct Inputs {
    Piece pieces[CHUNKS][ROW_TILES];
};

KVPLAN_INLINE Inputs load_inputs(const Source& source) {
    Inputs x;
    KVPLAN_UNROLL
    for (int c = 0; c < CHUNKS; ++c) {
        KVPLAN_UNROLL
        for (int r = 0; r < ROW_TILES; ++r) {
            x.pieces[c][r].vector = {0, 0, 0, 0};
            if (c * CHUNK < source.left) x.pieces[c][r].vector = load_vector<uint4>(source.x[r] + c * CHUNK);
        }
    }
    return x;
}

KVPLAN_INLINE void multiply(Sums& sums, const Stage& stage, const Inputs& x, int lane) {
    KVPLAN_UNROLL
    for (int c = 0; c < CHUNKS; ++c) {
        KVPLAN_UNROLL
        for (int tile = 0; tile < TILES; ++tile) {
            const int first = (c * TILES + tile) * 2;
            const Piece low = stage.pieces[first][lane], high = stage.pieces[first + 1][lane];
            KVPLAN_UNROLL
            for (int i = 0; i < PIECE / 2; i += 2) {
                const u32 a[4] = {low.pairs[i], high.pairs[i], low.pairs[i + 1], high.pairs[i + 1]};
                KVPLAN_UNROLL
                for (int r = 0; r < ROW_TILES; ++r) {
                    const u32 b[2] = {x.pieces[c][r].pairs[i], x.pieces[c][r].pairs[i + 1]};
                    multiply_accumulate<Scalar>(sums.values[tile][r], a, b);
                }
            }
        }
    }
}

// Which sum of which lane is number `place`.
KVPLAN_INLINE float of_warp(const Merged& merged, int warp, int place) {
    const int row = place / WEIGHT_ROWS, weight_row = place % WEIGHT_ROWS;
    const int tile = weight_row / 16 * ROW_TILES + row / 8;
    return merged.of_warps[warp][tile * 4 + weight_row % 16 / 8 * 2 + row % 2][weight_row % 8 * 4 + row % 8 / 2];
}

KVPLAN_INLINE void add_warps(Merged& merged, const Sums& sums, int warp, int lane) {
    const float* own = &sums.values[0][0][0];
    KVPLAN_UNROLL
    for (int i = 0; i < TILES * ROW_TILES * 4; ++i) merged.of_warps[warp][i][lane] = own[i];
    __syncthreads();
    for (int place = int(threadIdx.x); place < SUMS; place += THREADS) {
        float total = 0.0f;
        KVPLAN_UNROLL
        for (int w = 0; w < WARPS; ++w) total += of_warp(merged, w, place);
        merged.totals[place] = total;
    }
}

// Adds what the blocks of grid y have, in their order, in the one that is done last: whether this is it.
KVPLAN_INLINE bool add_blocks(Merged& merged, const SkinnyParams& params) {
    float* parts = params.parts + i64(blockIdx.x) * gridDim.y * SUMS;
    for (int place = int(threadIdx.x); place < SUMS; place += THREADS)
        parts[blockIdx.y * SUMS + place] = merged.totals[place];
    __threadfence();  // this thread's part is visible before the block counts as done
    __syncthreads();
    if (threadIdx.x == 0) {
        merged.is_last = atomicAdd(params.finished + blockIdx.x, 1) == int(gridDim.y) - 1;
        if (merged.is_last) params.finished[blockIdx.x] = 0;  // ready for the next product
        __threadfence();
    }
    __syncthreads();
    if (!merged.is_last) return false;
    for (int place = int(threadIdx.x); place < SUMS; place += THREADS) {
        float total = 0.0f;
        for (int y = 0; y < int(gridDim.y); ++y) total += load_from_l2(parts + y * SUMS + place);
        merged.totals[place] = total;
    }
    return true;
}

KVPLAN_INLINE float bias_of(i64 weight_row, const SkinnyParams& params) {
    return params.bias == nullptr ? 0.0f : to_float(static_cast<const Scalar*>(params.bias)[weight_row]);
}

// Output `number` of the block's in a row of x: all of it in float32, rounded once.
KVPLAN_INLINE void store_one(const Merged& merged, int row, int number, const SkinnyParams& params) {
    const int output = int(blockIdx.x) * OUTPUTS + number;
    if (row >= params.rows || output >= params.outputs) return;
    const int place = row * WEIGHT_ROWS + (IS_GATED ? number / 8 * 16 + number % 8 : number);
    const float up = IS_GATED ? merged.totals[place + 8] + bias_of(i64(params.outputs) + output, params) : 0.0f;
    float value = finish(merged.totals[place] + bias_of(output, params), up, 0.0f);
    if (params.residual != nullptr)
        value += to_float(static_cast<const Scalar*>(params.residual)[row * params.residual_stride + output]);
    static_cast<Scalar*>(params.out)[row * params.out_stride + output] = from_float<Scalar>(value);
}

// The beginnings of the block's rows: they come while the kernel before this one ends.
KVPLAN_INLINE void prefetch_rows(const SkinnyParams& params) {
    const int row = int(threadIdx.x), begin = int(blockIdx.y) * params.spans * SPAN;
    if (row >= WEIGHT_ROWS) return;
    const int count = smaller(smaller(AHEAD, params.spans * SPAN), params.inputs - begin);
    prefetch_weight(row_of_weight(row, params) + begin, u32(count * sizeof(Scalar)));
}

// The warp's part of the block's sums. `ring`: of the warp, STAGES long.
KVPLAN_INLINE Sums sums_of_warp(const SkinnyParams& params, Stage* ring, int warp, int lane) {
    const int steps = ceil_divide(params.spans, WARPS) * TILES;
    Source begun = source_of(params, warp, lane), source = begun;
    for (int number = 0; number < STAGES; ++number) {
        if (number < steps) begin_weights(ring[number], begun, lane);
        commit_copies();
        advance(begun, inputs_to_next(number));
    }
    if (params.is_early) prefetch_rows(params);
    wait_for_predecessor();
    Sums sums = {};
    Inputs x = load_inputs(source);
    for (int number = 0; number < steps; ++number) {
        advance(source, inputs_to_next(number));
        const Inputs next = load_inputs(source);
        wait_copies<STAGES - 1>();
        Stage& stage = ring[number % STAGES];
        multiply(sums, stage, x, lane);
        if (number + STAGES < steps) begin_weights(stage, begun, lane);
        commit_copies();
        advance(begun, inputs_to_next(number + STAGES));
        x = next;
    }
    return sums;
}

// grid (ceil(outputs / OUTPUTS), ceil(inputs / (spans * SPAN))), block THREADS, dynamic shared memory for the rings.
KVPLAN_EARLY_KERNEL(skinny_product, SkinnyParams, THREADS) {
    KVPLAN_DYNAMIC_SHARED(shared);
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    const Sums sums = sums_of_warp(params, reinterpret_cast<Stage*>(shared) + warp * STAGES, warp, lane);
    __syncthreads();  // nobody reads the weight any more
    Merged& merged = *reinterpret_cast<Merged*>(shared);
    add_warps(merged, sums, warp, lane);
    if (gridDim.y > 1 && !add_blocks(merged, params)) return;
    __syncthreads();
    for (int place = int(threadIdx.x); place < ROWS * OUTPUTS; place += THREADS)
        store_one(merged, place / OUTPUTS, place % OUTPUTS, params);
}
