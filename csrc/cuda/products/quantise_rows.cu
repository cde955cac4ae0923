// Rows rounded to float8 (e4m3), each by a scale of its own that makes its largest element 448: what a product of two
// float8 matrices takes. A row of zeros has scale 1.
#include "../reduce.cuh"

using Scalar = KVPLAN_SCALAR;
constexpr int WARPS = 8;
constexpr int THREADS = WARPS * WARP_LANES;
constexpr int VECTOR = Pack<Scalar>::SIZE;
constexpr float LARGEST = 448.0f;

struct QuantiseParams {
    // [gridDim.x, inputs]  Scalar, rows x_stride elements apart and at multiples of 16 bytes; inputs are whole vectors
    const void* x;
    // [gridDim.x, inputs]  float8
    float8* out;
    // [gridDim.x]  float32: what out's rows are to be multiplied with
    float* scales;
    i64 x_stride;
    int inputs;
};

KVPLAN_INLINE float largest_of_block(float value) {
    __shared__ float of_warps[WARPS];
    for (int mask = 1; mask < WARP_LANES; mask *= 2) value = maximum(value, __shfl_xor_sync(FULL_WARP, value, mask));
    if (threadIdx.x % WARP_LANES == 0) of_warps[threadIdx.x / WARP_LANES] = value;
    __syncthreads();
    float total = 0.0f;
    KVPLAN_UNROLL
    for (int w = 0; w < WARPS; ++w) total = maximum(total, of_warps[w]);
    return total;
}

// grid (rows), block THREADS.
KVPLAN_KERNEL(quantise_rows, QuantiseParams, THREADS) {
    const Scalar* x = static_cast<const Scalar*>(params.x) + blockIdx.x * params.x_stride;
    float largest = 0.0f;
    for (int k = int(threadIdx.x) * VECTOR; k < params.inputs; k += THREADS * VECTOR) {
        const auto row = Elements<Scalar, VECTOR>::load(x + k);
        KVPLAN_UNROLL
        for (int i = 0; i < VECTOR; ++i) largest = maximum(largest, fabsf(row.values[i]));
    }
    largest = largest_of_block(largest);
    const float scale = largest > 0.0f ? largest / LARGEST : 1.0f;
    if (threadIdx.x == 0) params.scales[blockIdx.x] = scale;
    float8* out = params.out + i64(blockIdx.x) * params.inputs;
    for (int k = int(threadIdx.x) * VECTOR; k < params.inputs; k += THREADS * VECTOR) {
        const auto row = Elements<Scalar, VECTOR>::load(x + k);
        union {
            u32 words[VECTOR / 4];
            float8 elements[VECTOR];
        } rounded;
        KVPLAN_UNROLL
        for (int i = 0; i < VECTOR; ++i) rounded.elements[i] = from_float<float8>(row.values[i] / scale);
        KVPLAN_UNROLL
        for (int w = 0; w < VECTOR / 4; ++w) store_vector<u32>(out + k + 4 * w, rounded.words[w]);
    }
}
