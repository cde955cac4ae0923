// y = x W^T + bias on tensor cores, for more rows than quantised_simple.cu multiplies as fast as codes arrive.
//
// A warp makes TILES tiles of 16 outputs for 8 or 16 rows. Lane 4 g + t has CODE_BYTES of codes of outputs g and g + 8 of a
// tile, and the same inputs of rows g (and g + 8) of x: as it does not matter in which order inputs are added up, each
// quarter of an mma's inputs is four neighbours of one lane, and neither codes nor x pass through shared memory.
//
//     inputs of a step     lane t = 0      | 1               | 2    | 3         CODE_BYTES = 16 of 4 bits: 32 each
//     of the first mma     0 1 2 3         | 32 33 34 35     | ...
//
// Weights are rounded to the storage type, as those that are widened for more rows are. Where outputs are few, SPLIT warps
// share them and each takes some of the inputs.
#include "quantised.cuh"
#include "../tensor_core.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_LANES;
constexpr int ROW_TILES = KVPLAN_ROWS / 8;
constexpr int TILES = KVPLAN_OUTPUTS / 16;
constexpr int SPLIT = KVPLAN_SPLIT;
constexpr int CODE_BYTES = KVPLAN_CODE_BYTES;
constexpr int LANE_INPUTS = CODE_BYTES * 8 / BITS;
constexpr int STEP = LANE_INPUTS * 4;                   // of a warp at a time
constexpr int SCALED = smaller(GROUP, LANE_INPUTS);     // inputs of a lane that share a scale

struct Sums {
    float values[TILES][ROW_TILES][4];
};

// What a lane has of one output.
struct Output {
    const u8* codes;
    i64 first_group;
    Codes<CODE_BYTES> loaded;
    float scale, minimum;
    u32 pairs[PIECE / 2];
};

KVPLAN_INLINE void load_scale(Output& output, int input, const QuantisedParams& params) {
    const i64 group = output.first_group + input / GROUP;
    output.scale = scale_at(params.scales, group);
    output.minimum = HAS_MINIMUMS ? scale_at(params.minimums, group) : 0.0f;
}

KVPLAN_INLINE void widen(Output& output, int first, const float* table, float offset) {
    float values[PIECE];
    widen_piece(values, output.loaded.words + first * BITS / 32, table, offset);
    KVPLAN_UNROLL
    for (int i = 0; i < PIECE; i += 2) {
        const float low = values[i] * output.scale + output.minimum, high = values[i + 1] * output.scale + output.minimum;
        output.pairs[i / 2] = Pair<Scalar>::pack(low, high);
    }
}

// PIECE inputs of a row, in pairs.
union Row {
    uint4 vector;
    u32 pairs[PIECE / 2];
};

// The part of a step that begins with input `k` of the lane; nothing where the inputs have ended before.
KVPLAN_INLINE void multiply_step(Sums& sums, Output (&outputs)[TILES][2], const Scalar* const (&rows)[ROW_TILES], int k,
                                 const float* table, const QuantisedParams& params) {
    const bool is_inside = k < params.inputs;
    const float offset = offset_of(params.zero);
    KVPLAN_UNROLL
    for (int tile = 0; tile < TILES; ++tile) {
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            Output& output = outputs[tile][half];
            output.loaded = {};
            output.scale = output.minimum = 0.0f;
            if (is_inside) output.loaded = Codes<CODE_BYTES>::load(output.codes + i64(k) * BITS / 8);
        }
    }
    KVPLAN_UNROLL
    for (int first = 0; first < LANE_INPUTS; first += PIECE) {
        Row x[ROW_TILES];
        KVPLAN_UNROLL
        for (int r = 0; r < ROW_TILES; ++r) {
            x[r].vector = {0, 0, 0, 0};
            if (is_inside) x[r].vector = load_vector<uint4>(rows[r] + k + first);
        }
        KVPLAN_UNROLL
        for (int tile = 0; tile < TILES; ++tile) {
            Output(&two)[2] = outputs[tile];
            KVPLAN_UNROLL
            for (int half = 0; half < 2; ++half) {
                if (first % SCALED == 0 && is_inside) load_scale(two[half], k + first, params);
                widen(two[half], first, table, offset);
            }
            KVPLAN_UNROLL
            for (int i = 0; i < PIECE / 2; i += 2) {
                const u32 a[4] = {two[0].pairs[i], two[1].pairs[i], two[0].pairs[i + 1], two[1].pairs[i + 1]};
                KVPLAN_UNROLL
                for (int r = 0; r < ROW_TILES; ++r) {
                    const u32 b[2] = {x[r].pairs[i], x[r].pairs[i + 1]};
                    multiply_accumulate<Scalar>(sums.values[tile][r], a, b);
                }
            }
        }
    }
}

// The sum over the warps that share outputs, in the first of them.
KVPLAN_INLINE void add_up(Sums& sums, int warp, int lane) {
    if constexpr (SPLIT > 1) {
        constexpr int COUNT = TILES * ROW_TILES * 4;
        __shared__ float of_warps[WARPS][COUNT][WARP_LANES];
        float* own = &sums.values[0][0][0];
        KVPLAN_UNROLL
        for (int i = 0; i < COUNT; ++i) of_warps[warp][i][lane] = own[i];
        __syncthreads();
        KVPLAN_UNROLL
        for (int i = 0; i < COUNT; ++i) {
            own[i] = 0.0f;
            KVPLAN_UNROLL
            for (int w = 0; w < SPLIT; ++w) own[i] += of_warps[warp / SPLIT * SPLIT + w][i][lane];
        }
    }
}

KVPLAN_INLINE void store_one(float sum, int row, int output, const QuantisedParams& params) {
    if (row >= params.rows || output >= params.outputs) return;
    const float bias = params.bias == nullptr ? 0.0f : to_float(static_cast<const Scalar*>(params.bias)[output]);
    static_cast<Scalar*>(params.out)[row * params.out_stride + output] = from_float<Scalar>(sum + bias);
}

// grid (ceil(outputs / (WARPS / SPLIT * TILES * 16)), 1), block THREADS.
KVPLAN_KERNEL(quantised_product, QuantisedParams, THREADS) {
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    const int g = lane / 4, t = lane % 4;
    const int first_output = (int(blockIdx.x) * (WARPS / SPLIT) + warp / SPLIT) * TILES * 16;
    const float* table = shared_table(params.book);
    const Scalar* rows[ROW_TILES];
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r)
        rows[r] = static_cast<const Scalar*>(params.x) + smaller(r * 8 + g, params.rows - 1) * params.x_stride;
    Output outputs[TILES][2];
    KVPLAN_UNROLL
    for (int place = 0; place < TILES * 2; ++place) {
        const i64 output = smaller(first_output + place * 8 + g, params.outputs - 1);
        outputs[place / 2][place % 2].codes = params.codes + output * params.inputs * BITS / 8;
        outputs[place / 2][place % 2].first_group = output * (params.inputs / GROUP);
    }
    Sums sums = {};
    for (int k = warp % SPLIT * STEP; k < params.inputs; k += SPLIT * STEP)
        multiply_step(sums, outputs, rows, k + t * LANE_INPUTS, table, params);
    add_up(sums, warp, lane);
    if (warp % SPLIT != 0) return;
    KVPLAN_UNROLL
    for (int tile = 0; tile < TILES; ++tile) {
        KVPLAN_UNROLL
        for (int r = 0; r < ROW_TILES; ++r) {
            KVPLAN_UNROLL
            for (int i = 0; i < 4; ++i)
                store_one(sums.values[tile][r][i], r * 8 + 2 * t + i % 2, first_output + tile * 16 + i / 2 * 8 + g, params);
        }
    }
}
