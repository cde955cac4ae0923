// Rows of a weight in few bits, widened: for a product of many rows by another library, and for looking them up.
#include "quantised.cuh"

constexpr int THREADS = 256;

struct WidenParams {
    // [outputs, inputs * BITS / 8], [outputs, inputs / GROUP], the same, [BOOK_SIZE]: as in QuantisedParams
    const u8* codes;
    const void* scales;
    const void* minimums;
    const float* book;
    // [gridDim.x]  int64, rows of the weight; null: first_output and those that follow
    const i64* indices;
    // [inputs]  int32, where each input of the weight goes; null: it stays
    const int* order;
    // [gridDim.x, inputs]  Scalar, rows out_stride elements apart and at multiples of 16 bytes
    void* out;
    i64 out_stride;
    int inputs;
    int first_output;
    float zero;
};

// grid (rows, ceil(inputs / (THREADS * PIECE))), block THREADS.
KVPLAN_KERNEL(widen_rows, WidenParams, THREADS) {
    const float* table = shared_table(params.book);
    const int k = (int(blockIdx.y) * THREADS + int(threadIdx.x)) * PIECE;
    if (k >= params.inputs) return;
    const i64 output = params.indices != nullptr ? params.indices[blockIdx.x] : params.first_output + i64(blockIdx.x);
    const i64 group = output * (params.inputs / GROUP) + k / GROUP;
    const auto codes = Codes<PIECE_BYTES>::load(params.codes + (output * params.inputs + k) * BITS / 8);
    const float scale = scale_at(params.scales, group);
    const float minimum = HAS_MINIMUMS ? scale_at(params.minimums, group) : 0.0f;
    float values[PIECE];
    widen_piece(values, codes.words, table, offset_of(params.zero));
    KVPLAN_UNROLL
    for (int i = 0; i < PIECE; ++i) values[i] = values[i] * scale + minimum;
    Scalar* out = static_cast<Scalar*>(params.out) + blockIdx.x * params.out_stride;
    if (params.order == nullptr) {
        store_piece(out + k, values);
        return;
    }
    KVPLAN_UNROLL
    for (int i = 0; i < PIECE; ++i) out[params.order[k + i]] = from_float<Scalar>(values[i]);
}
