// Products of a mixture of experts without tensor cores: few rows, float32, compute capability 7.x.
//
// A warp makes OUTPUTS outputs of all rows of its item: a vector of each weight row is read once and multiplied with the
// same vector of every row.
#include "mixture.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_LANES;
constexpr int OUTPUTS = 2;
constexpr int VECTOR = Pack<Scalar>::SIZE;
// Vectors of a weight row under way at once: several rows have enough to do with one, and with two sm_75 spills.
constexpr int VECTORS = ROWS > 1 || KVPLAN_ARCH < 800 ? 1 : 2;

struct Sums {
    float values[ROWS][OUTPUTS][HALVES];
};

// The dot products of this lane's vectors.
KVPLAN_INLINE void multiply(Sums& sums, const Item& item, int first_output, int lane, const ProductParams& params) {
    const Scalar* rows[ROWS];
    const Scalar* weights[OUTPUTS][HALVES];
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) rows[r] = input_row(pair_of(item, r, params), params);
    KVPLAN_UNROLL
    for (int o = 0; o < OUTPUTS; ++o) {
        KVPLAN_UNROLL
        for (int half = 0; half < HALVES; ++half)
            weights[o][half] = weight_row(item.expert, half, smaller(first_output + o, params.outputs - 1), params);
    }
    KVPLAN_UNROLL_BY(VECTORS)
    for (int k = lane * VECTOR; k < params.inputs; k += WARP_LANES * VECTOR) {
        Pack<Scalar> weight[OUTPUTS][HALVES];
        KVPLAN_UNROLL
        for (int o = 0; o < OUTPUTS; ++o) {
            KVPLAN_UNROLL
            for (int half = 0; half < HALVES; ++half) weight[o][half] = load_pack(weights[o][half] + k);
        }
        KVPLAN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const Pack<Scalar> x = load_pack(rows[r] + k);
            KVPLAN_UNROLL
            for (int o = 0; o < OUTPUTS; ++o) {
                KVPLAN_UNROLL
                for (int half = 0; half < HALVES; ++half) {
                    KVPLAN_UNROLL
                    for (int i = 0; i < VECTOR; ++i)
                        sums.values[r][o][half] += to_float(x.elements[i]) * to_float(weight[o][half].elements[i]);
                }
            }
        }
    }
}

// grid (ceil(num_outputs / (WARPS * OUTPUTS)), items), block THREADS.
KVPLAN_KERNEL(expert_product, ProductParams, THREADS) {
    const Item item = item_of(int(blockIdx.y), params);
    if (item.expert < 0) return;
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    const int place = (int(blockIdx.x) * WARPS + warp) * OUTPUTS;  // among the launch's outputs
    if (place >= params.num_outputs) return;
    const int first_output = params.first_output + place;
    Sums sums = {};
    multiply(sums, item, first_output, lane, params);
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        KVPLAN_UNROLL
        for (int o = 0; o < OUTPUTS; ++o) {
            float products[2] = {};
            KVPLAN_UNROLL
            for (int half = 0; half < HALVES; ++half) {
                products[half] = sums.values[r][o][half];
                for (int mask = 1; mask < WARP_LANES; mask *= 2)
                    products[half] += __shfl_xor_sync(FULL_WARP, products[half], mask);
            }
            if (lane != r * OUTPUTS + o || r >= item.count || place + o >= params.num_outputs) continue;
            KVPLAN_UNROLL
            for (int half = 0; half < HALVES; ++half)
                products[half] += bias_of(item.expert, half, first_output + o, params);
            Out* out = static_cast<Out*>(params.out) + pair_of(item, r, params) * params.out_stride;
            out[place + o] = from_float<Out>(finish(products[0], products[1], params.limit));
        }
    }
}
