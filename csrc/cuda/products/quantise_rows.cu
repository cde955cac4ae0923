// Rows rounded to float8 (e4m3), each, or each KVPLAN_GROUP inputs of one, by a scale of its own that makes its largest
// element 448: what a product of two float8 matrices takes. Zeros have scale 1.
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
    // [gridDim.x, scales of a row]  float32: what out's rows, or groups, are to be multiplied with
    float* scales;
    i64 x_stride;
    int inputs;
};

using Vector = Elements<Scalar, VECTOR>;

KVPLAN_INLINE float largest_of(const Vector& row, float largest) {
    KVPLAN_UNROLL
    for (int i = 0; i < VECTOR; ++i) largest = maximum(largest, fabsf(row.values[i]));
    return largest;
}

KVPLAN_INLINE float scale_of(float largest) { return largest > 0.0f ? largest / LARGEST : 1.0f; }

KVPLAN_INLINE void store_rounded(float8* out, const Vector& row, float scale) {
    union {
        u32 words[VECTOR / 4];
        float8 elements[VECTOR];
    } rounded;
    KVPLAN_UNROLL
    for (int i = 0; i < VECTOR; ++i) rounded.elements[i] = from_float<float8>(row.values[i] / scale);
    KVPLAN_UNROLL
    for (int w = 0; w < VECTOR / 4; ++w) store_vector<u32>(out + 4 * w, rounded.words[w]);
}

#ifdef KVPLAN_GROUP

constexpr int GROUP = KVPLAN_GROUP;
constexpr int SHARERS = GROUP / VECTOR;  // lanes that share a scale
static_assert(SHARERS <= WARP_LANES && WARP_LANES % SHARERS == 0);

// grid (rows, ceil(inputs / (THREADS * VECTOR))), block THREADS; inputs are whole groups.
KVPLAN_KERNEL(quantise_rows, QuantiseParams, THREADS) {
    const int k = (int(blockIdx.y) * THREADS + int(threadIdx.x)) * VECTOR;
    const bool is_inside = k < params.inputs;
    const Scalar* x = static_cast<const Scalar*>(params.x) + blockIdx.x * params.x_stride;
    const auto row = Vector::load(x + (is_inside ? k : 0));
    float largest = largest_of(row, 0.0f);
    for (int mask = 1; mask < SHARERS; mask *= 2) largest = maximum(largest, __shfl_xor_sync(FULL_WARP, largest, mask));
    if (!is_inside) return;
    const float scale = scale_of(largest);
    if (k % GROUP == 0) params.scales[i64(blockIdx.x) * (params.inputs / GROUP) + k / GROUP] = scale;
    store_rounded(params.out + i64(blockIdx.x) * params.inputs + k, row, scale);
}

#else

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
    for (int k = int(threadIdx.x) * VECTOR; k < params.inputs; k += THREADS * VECTOR)
        largest = largest_of(Vector::load(x + k), largest);
    const float scale = scale_of(largest_of_block(largest));
    if (threadIdx.x == 0) params.scales[blockIdx.x] = scale;
    float8* out = params.out + i64(blockIdx.x) * params.inputs;
    for (int k = int(threadIdx.x) * VECTOR; k < params.inputs; k += THREADS * VECTOR)
        store_rounded(out + k, Vector::load(x + k), scale);
}

#endif
