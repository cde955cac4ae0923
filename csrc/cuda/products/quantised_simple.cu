// y = x W^T + bias for few rows and a weight in few bits, without tensor cores.
//
// A warp makes OUTPUTS outputs of ROWS rows: a lane loads CODE_BYTES of codes of each, and multiplies what they stand for
// with every row. Within a group x is multiplied with the codes' values and the sum with the group's scale, in float32.
// Where outputs are few, SPLIT warps share them and each takes some of the inputs.
#include "quantised.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_LANES;
constexpr int ROWS = KVPLAN_ROWS;
constexpr int OUTPUTS = KVPLAN_OUTPUTS;
constexpr int SPLIT = KVPLAN_SPLIT;
constexpr int CODE_BYTES = KVPLAN_CODE_BYTES;         // 16, or less where a row of codes is no multiple of that
constexpr int LANE_INPUTS = CODE_BYTES * 8 / BITS;    // of a lane at a time
constexpr int STEP = LANE_INPUTS * WARP_LANES;        // of a warp at a time
constexpr int SCALED = smaller(GROUP, LANE_INPUTS);   // inputs of a lane that share a scale

static_assert(WARPS % SPLIT == 0 && GROUP >= PIECE && (GROUP & (GROUP - 1)) == 0);

struct Sums {
    float values[ROWS][OUTPUTS];
};

struct Source {
    const Scalar* x[ROWS];      // rows behind the last one are the last one
    int outputs[OUTPUTS];       // outputs behind the last one are the last one
};

KVPLAN_INLINE void multiply(Sums& sums, const Source& source, const float* table, int first_input, const QuantisedParams& params) {
    const float offset = offset_of(params.zero);
    const i64 code_pitch = i64(params.inputs) * BITS / 8;
    const int num_groups = params.inputs / GROUP;
    for (int k = first_input; k < params.inputs; k += SPLIT * STEP) {
        Codes<CODE_BYTES> codes[OUTPUTS];
        KVPLAN_UNROLL
        for (int o = 0; o < OUTPUTS; ++o)
            codes[o] = Codes<CODE_BYTES>::load(params.codes + source.outputs[o] * code_pitch + k * BITS / 8);
        float scales[OUTPUTS], minimums[OUTPUTS];
        KVPLAN_UNROLL
        for (int first = 0; first < LANE_INPUTS; first += PIECE) {
            float values[OUTPUTS][PIECE];
            KVPLAN_UNROLL
            for (int o = 0; o < OUTPUTS; ++o) {
                if (first % SCALED == 0) {
                    const i64 group = i64(source.outputs[o]) * num_groups + (k + first) / GROUP;
                    scales[o] = scale_at(params.scales, group);
                    minimums[o] = HAS_MINIMUMS ? scale_at(params.minimums, group) : 0.0f;
                }
                widen_piece(values[o], codes[o].words + first * BITS / 32, table, offset);
            }
            KVPLAN_UNROLL
            for (int r = 0; r < ROWS; ++r) {
                float x[PIECE];
                load_piece(x, source.x[r] + k + first);
                float total = 0.0f;
                KVPLAN_UNROLL
                for (int i = 0; i < PIECE; ++i) total += x[i];
                KVPLAN_UNROLL
                for (int o = 0; o < OUTPUTS; ++o) {
                    float product = 0.0f;
                    KVPLAN_UNROLL
                    for (int i = 0; i < PIECE; ++i) product += x[i] * values[o][i];
                    sums.values[r][o] += scales[o] * product;
                    if constexpr (HAS_MINIMUMS) sums.values[r][o] += minimums[o] * total;
                }
            }
        }
    }
}

// The sum over the lanes of a warp, in each of them, and over the warps that share the outputs, in the first of these.
KVPLAN_INLINE void add_up(Sums& sums, int warp, int lane) {
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        KVPLAN_UNROLL
        for (int o = 0; o < OUTPUTS; ++o) {
            for (int mask = 1; mask < WARP_LANES; mask *= 2)
                sums.values[r][o] += __shfl_xor_sync(FULL_WARP, sums.values[r][o], mask);
        }
    }
    if constexpr (SPLIT > 1) {
        __shared__ Sums of_warps[WARPS];
        if (lane == 0) of_warps[warp] = sums;
        __syncthreads();
        KVPLAN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            KVPLAN_UNROLL
            for (int o = 0; o < OUTPUTS; ++o) {
                sums.values[r][o] = 0.0f;
                KVPLAN_UNROLL
                for (int w = 0; w < SPLIT; ++w) sums.values[r][o] += of_warps[warp / SPLIT * SPLIT + w].values[r][o];
            }
        }
    }
}

// grid (ceil(outputs / (WARPS / SPLIT * OUTPUTS)), ceil(rows / ROWS)), block THREADS.
KVPLAN_KERNEL(quantised_product, QuantisedParams, THREADS) {
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    const int first_output = (int(blockIdx.x) * (WARPS / SPLIT) + warp / SPLIT) * OUTPUTS;
    const int first_row = int(blockIdx.y) * ROWS;
    const float* table = shared_table(params.book);
    Source source;
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r)
        source.x[r] = static_cast<const Scalar*>(params.x) + smaller(first_row + r, params.rows - 1) * params.x_stride;
    KVPLAN_UNROLL
    for (int o = 0; o < OUTPUTS; ++o) source.outputs[o] = smaller(first_output + o, params.outputs - 1);
    Sums sums = {};
    multiply(sums, source, table, warp % SPLIT * STEP + lane * LANE_INPUTS, params);
    add_up(sums, warp, lane);
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        KVPLAN_UNROLL
        for (int o = 0; o < OUTPUTS; ++o) {
            const int output = first_output + o, row = first_row + r;
            const bool is_own = warp % SPLIT == 0 && lane == (r * OUTPUTS + o) % WARP_LANES;
            if (!is_own || row >= params.rows || output >= params.outputs) continue;
            const float bias = params.bias == nullptr ? 0.0f : to_float(static_cast<const Scalar*>(params.bias)[output]);
            static_cast<Scalar*>(params.out)[row * params.out_stride + output] = from_float<Scalar>(sums.values[r][o] + bias);
        }
    }
}
