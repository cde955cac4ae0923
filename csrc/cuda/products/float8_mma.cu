// y = x W^T + bias with both in float8, each with scales of GROUP inputs: of every row of x, and of 128 x 128 blocks of W.
//
// mma.sync of float8 is an instruction of compute capability 8.9 and 12.x alone (KVPLAN_NATIVE). For 9.0 and 10.x compilers make
// it conversions, products of float16 and additions: 957 instructions of a warp for a group of a tile of 128 rows. There
// fragments become float16 here, in which float8 is exact, and tensor cores add up in float32: 766, for 10.0 659.
//
// A block multiplies ROWS rows with OUTPUTS rows of the weight, a group of inputs at a time, STAGES of which are on their way
// to shared memory. A group's sums are made on tensor cores alone; then they are scaled and added to the others in float32,
// which is what such checkpoints are made for (and tensor cores need not keep float32's digits over long sums of float8).
//
//     ROWS  OUTPUTS  warps (down x across)  a warp's tile         for
//      32     64           1 x 4              32 x 16             few rows: a weight is read once, by many blocks
//      64     64           2 x 2              32 x 32
//     128    128           2 x 4              64 x 32             prompts
#include "../tensor_core.cuh"

using Scalar = KVPLAN_SCALAR;  // of bias and outputs

constexpr int ROWS = KVPLAN_ROWS;
constexpr int STAGES = KVPLAN_STAGES;
constexpr bool IS_NATIVE = KVPLAN_NATIVE;
constexpr int GROUP = 128;  // inputs of a scale; bytes of a row in a stage
constexpr int OUTPUTS = ROWS == 128 ? 128 : 64;
constexpr int WARPS = ROWS == 128 ? 8 : 4;
constexpr int WARPS_ACROSS = ROWS == 64 ? 2 : 4;
constexpr int THREADS = WARPS * WARP_LANES;
constexpr int WARP_ROWS = ROWS / (WARPS / WARPS_ACROSS);
constexpr int WARP_OUTPUTS = OUTPUTS / WARPS_ACROSS;
constexpr int ROW_TILES = WARP_ROWS / 16;
constexpr int COLUMN_TILES = WARP_OUTPUTS / 8;
constexpr int PITCH = GROUP + 16;  // an odd number of vectors avoids bank conflicts
constexpr int STAGE_BYTES = (ROWS + OUTPUTS) * PITCH;
constexpr int VECTORS = GROUP / 16;
constexpr int ROWS_PER_PASS = THREADS / VECTORS;  // that all threads copy at once

static_assert(ROWS == 32 || ROWS == 64 || ROWS == 128);

struct Float8Params {
    // [rows, inputs]  float8; inputs are whole groups
    const float8* x;
    // [rows, inputs / GROUP]  float32
    const float* x_scales;
    // [outputs, inputs]  float8
    const float8* weight;
    // [outputs, inputs / GROUP]  float32, the same for the outputs of each 128
    const float* weight_scales;
    // [outputs]  Scalar; null without a bias
    const void* bias;
    // [rows, outputs]  Scalar, rows out_stride elements apart; both are even numbers
    void* out;
    i64 out_stride;
    int inputs;
    int outputs;
    int rows;
};

// COUNT rows from `first` on, of which there are `end`; those behind it are zeros.
template <int COUNT>
KVPLAN_INLINE void copy_rows(u8* target, const float8* source, int first, int end, int step, int inputs) {
    const int own = int(threadIdx.x) / VECTORS, vector = int(threadIdx.x) % VECTORS * 16;
    const float8* from = source + i64(first + own) * inputs + step * GROUP + vector;
    KVPLAN_UNROLL
    for (int row = 0; row < COUNT; row += ROWS_PER_PASS) {
        const bool wanted = first + own + row < end;
        copy_async_16(target + (own + row) * PITCH + vector, wanted ? from + i64(row) * inputs : source, wanted);
    }
}

KVPLAN_INLINE void begin_step(u8* stage, int first_row, int first_output, int step, const Float8Params& params) {
    copy_rows<ROWS>(stage, params.x, first_row, params.rows, step, params.inputs);
    copy_rows<OUTPUTS>(stage + ROWS * PITCH, params.weight, first_output, params.outputs, step, params.inputs);
}

struct Tile {
    float sums[ROW_TILES][COLUMN_TILES][4];
};

// What ldmatrix brings of 32 inputs, WORDS registers with four of them each; where float8 is not multiplied, two halves of each.
template <int WORDS>
struct Fragment {
    u32 words[IS_NATIVE ? WORDS : 2 * WORDS];

    KVPLAN_METHOD explicit Fragment(const u32* loaded) {
        KVPLAN_UNROLL
        for (int w = 0; w < WORDS; ++w) {
            if constexpr (IS_NATIVE) {
                words[w] = loaded[w];
            } else {
                words[2 * w] = Pair<float16>::from_float8(loaded[w], 0);
                words[2 * w + 1] = Pair<float16>::from_float8(loaded[w], 2);
            }
        }
    }
};

// c += a x b over 32 inputs. As halves inputs 4t, 4t+1 stand where an mma has 2t, 2t+1, and 4t+2, 4t+3 where it has 2t+8, 2t+9,
// the same in a and b: in which order inputs are added up does not matter.
template <typename A, typename B>
KVPLAN_INLINE void multiply_fragments(float (&c)[4], const A& a, const B& b) {
    if constexpr (IS_NATIVE) {
        multiply_accumulate_float8(c, a.words, b.words);
    } else {
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            const u32* words = a.words + 4 * half;
            const u32 rows[4] = {words[0], words[2], words[1], words[3]};
            const u32 columns[2] = {b.words[2 * half], b.words[2 * half + 1]};
            multiply_accumulate<float16>(c, rows, columns);
        }
    }
}

// `x` and `weight`: the warp's first rows in shared memory.
KVPLAN_INLINE void multiply_group(Tile& tile, const u8* x, const u8* weight, int lane) {
    const int matrix = lane / 8, row = lane % 8;
    KVPLAN_UNROLL
    for (int k = 0; k < GROUP; k += 32) {
        u32 loaded[ROW_TILES][4];
        KVPLAN_UNROLL
        for (int i = 0; i < ROW_TILES; ++i)
            load_matrix_x4(loaded[i], x + (i * 16 + matrix % 2 * 8 + row) * PITCH + k + matrix / 2 * 16);
        KVPLAN_UNROLL
        for (int j = 0; j < COLUMN_TILES; j += 2) {
            u32 both[4];
            load_matrix_x4(both, weight + (j * 8 + matrix / 2 * 8 + row) * PITCH + k + matrix % 2 * 16);
            const Fragment<2> first(both), second(both + 2);
            KVPLAN_UNROLL
            for (int i = 0; i < ROW_TILES; ++i) {
                const Fragment<4> a(loaded[i]);
                multiply_fragments(tile.sums[i][j], a, first);
                multiply_fragments(tile.sums[i][j + 1], a, second);
            }
        }
    }
}

// What a group's sums are multiplied with, for the rows g and g + 8 of each tile of rows.
KVPLAN_INLINE void load_factors(float (&factors)[ROW_TILES][2], int row, int first_output, int step,
                                const Float8Params& params) {
    const int groups = params.inputs / GROUP;
    const float of_weight = params.weight_scales[i64(first_output) * groups + step];
    KVPLAN_UNROLL
    for (int i = 0; i < ROW_TILES * 2; ++i) {
        const int place = smaller(row + i * 8, params.rows - 1);
        factors[i / 2][i % 2] = params.x_scales[i64(place) * groups + step] * of_weight;
    }
}

KVPLAN_INLINE void add_group(Tile& totals, const Tile& group, const float (&factors)[ROW_TILES][2]) {
    KVPLAN_UNROLL
    for (int i = 0; i < ROW_TILES; ++i) {
        KVPLAN_UNROLL
        for (int j = 0; j < COLUMN_TILES; ++j) {
            KVPLAN_UNROLL
            for (int e = 0; e < 4; ++e) totals.sums[i][j][e] += group.sums[i][j][e] * factors[i][e / 2];
        }
    }
}

// row, output: of the warp's tile, this lane's first.
KVPLAN_INLINE void store_tile(const Tile& totals, int row, int output, const Float8Params& params) {
    const Scalar* bias = static_cast<const Scalar*>(params.bias);
    KVPLAN_UNROLL
    for (int j = 0; j < COLUMN_TILES; ++j) {
        const int column = output + j * 8;
        if (column >= params.outputs) return;
        const float low = bias ? to_float(bias[column]) : 0.0f, high = bias ? to_float(bias[column + 1]) : 0.0f;
        KVPLAN_UNROLL
        for (int i = 0; i < ROW_TILES * 2; ++i) {
            if (row + i * 8 >= params.rows) continue;
            const float* sums = totals.sums[i / 2][j] + i % 2 * 2;
            Scalar* out = static_cast<Scalar*>(params.out) + (row + i * 8) * params.out_stride + column;
            store_vector<u32>(out, Pair<Scalar>::pack(sums[0] + low, sums[1] + high));
        }
    }
}

// grid (ceil(rows / ROWS), ceil(outputs / OUTPUTS)): blocks that run together read the same rows of the weight, and x comes
// from the second-level cache. Block THREADS, dynamic shared memory of STAGES * STAGE_BYTES.
KVPLAN_KERNEL(float8_product, Float8Params, THREADS) {
    KVPLAN_DYNAMIC_SHARED(shared);
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    const int first_output = int(blockIdx.y) * OUTPUTS, first_row = int(blockIdx.x) * ROWS;
    const int own_row = warp / WARPS_ACROSS * WARP_ROWS, own_output = warp % WARPS_ACROSS * WARP_OUTPUTS;
    const int num_steps = params.inputs / GROUP;
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < num_steps) begin_step(shared + step * STAGE_BYTES, first_row, first_output, step, params);
        commit_copies();
    }
    Tile totals = {};
    for (int step = 0; step < num_steps; ++step) {
        float factors[ROW_TILES][2];
        load_factors(factors, first_row + own_row + lane / 4, first_output, step, params);
        wait_copies<STAGES - 2>();
        __syncthreads();  // everybody's copies have landed, and nobody reads the stage that is filled next
        const int next = step + STAGES - 1;
        if (next < num_steps) begin_step(shared + next % STAGES * STAGE_BYTES, first_row, first_output, next, params);
        commit_copies();
        const u8* stage = shared + step % STAGES * STAGE_BYTES;
        Tile group = {};
        multiply_group(group, stage + own_row * PITCH, stage + (ROWS + own_output) * PITCH, lane);
        add_group(totals, group, factors);
    }
    store_tile(totals, first_row + own_row + lane / 4, first_output + own_output + lane % 4 * 2, params);
}
