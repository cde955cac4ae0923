// What the kernels over weights in few bits share: where codes, scales and minimums lie, and what a code stands for.
//
// Element [o, k] of the weight is  book[code[o, k]] * scales[o, k / GROUP] + minimums[o, k / GROUP].  Each file is compiled
// for one storage type and one format; the sizes of the matrix are arguments.
#pragma once

#include "../types.cuh"

using Scalar = KVPLAN_SCALAR;  // of inputs, outputs and bias
using Scale = KVPLAN_SCALE;    // of scales and minimums
enum class Book { linear, float8, table };
constexpr Book BOOK = Book::KVPLAN_BOOK;
constexpr int BITS = KVPLAN_BITS;
constexpr int GROUP = KVPLAN_GROUP;  // inputs that share a scale: 8, 16, 32, 64, 128 or 256
constexpr bool HAS_MINIMUMS = KVPLAN_MINIMUMS;
constexpr int BOOK_SIZE = 1 << BITS;
constexpr int PIECE = 8;  // inputs that are widened at once; never of two groups
constexpr int PIECE_BYTES = PIECE * BITS / 8;

struct QuantisedParams {
    // [rows, inputs]  Scalar, rows x_stride elements apart and at multiples of 16 bytes
    const void* x;
    // [outputs, inputs * BITS / 8]  of 4 bits an even input is the lower half of a byte, the next one the upper
    const u8* codes;
    // [outputs, inputs / GROUP]  Scale
    const void* scales;
    // [outputs, inputs / GROUP]  Scale; not read without minimums
    const void* minimums;
    // [BOOK_SIZE]  float32; read where BOOK is a table
    const float* book;
    // [outputs]  Scalar; null without a bias
    const void* bias;
    // [rows, outputs]  Scalar, rows out_stride elements apart
    void* out;
    i64 x_stride;
    i64 out_stride;
    int inputs;
    int outputs;
    int rows;
    float zero;  // the code that stands for 0, where BOOK is linear
};

// Codes that a thread loads at once.
template <int BYTES>
struct Codes {
    union {
        uint4 four;
        uint2 two;
        u32 words[4];
    };

    KVPLAN_INLINE Codes load(const u8* source) {
        Codes codes;
        if constexpr (BYTES == 16) codes.four = load_vector<uint4>(source);
        if constexpr (BYTES == 8) codes.two = load_vector<uint2>(source);
        if constexpr (BYTES == 4) codes.words[0] = load_vector<u32>(source);
        return codes;
    }
};

// What a code stands for. `table` lies in shared memory, where 16 numbers are in banks of their own.
//
// Codes that count evenly become floats without a conversion, which is slow: behind the exponent of 2^23 they are 2^23 +
// code. A float8 (e4m3) as in types.cuh, without its check for what is no number: checkpoints with such codes are refused.
KVPLAN_INLINE float value_of(u32 code, const float* table, float offset) {
    if constexpr (BOOK == Book::linear) return float_from_bits(0x4B000000u | code) - offset;
    if constexpr (BOOK == Book::float8) return float_from_bits((code & 0x80u) << 24 | (code & 0x7Fu) << 20) * float_from_bits(0x7B800000u);
    return table[code];
}

// To be subtracted in value_of: exact, as both are whole numbers below 2^24.
KVPLAN_INLINE float offset_of(float zero) { return 8388608.0f + zero; }

// The values of PIECE codes, which begin at words[0].
KVPLAN_INLINE void widen_piece(float* values, const u32* words, const float* table, float offset) {
    KVPLAN_UNROLL
    for (int i = 0; i < PIECE; ++i) {
        const u32 word = words[i * BITS / 32];
        values[i] = value_of(word >> i * BITS % 32 & u32(BOOK_SIZE - 1), table, offset);
    }
}

// All threads copy the table to shared memory; its address. Nothing where codes need none.
KVPLAN_INLINE const float* shared_table(const float* book) {
    if constexpr (BOOK == Book::table) {
        __shared__ float table[BOOK_SIZE];
        for (int i = int(threadIdx.x); i < BOOK_SIZE; i += int(blockDim.x)) table[i] = book[i];
        __syncthreads();
        return table;
    } else {
        return nullptr;
    }
}

KVPLAN_INLINE float scale_at(const void* scales, i64 place) { return to_float(static_cast<const Scale*>(scales)[place]); }

// PIECE neighbouring elements as floats.
template <typename T>
KVPLAN_INLINE void load_piece(float* values, const T* source) {
    constexpr int SIZE = Pack<T>::SIZE;
    KVPLAN_UNROLL
    for (int first = 0; first < PIECE; first += SIZE) {
        const Pack<T> pack = load_pack(source + first);
        KVPLAN_UNROLL
        for (int i = 0; i < SIZE; ++i) values[first + i] = to_float(pack.elements[i]);
    }
}

template <typename T>
KVPLAN_INLINE void store_piece(T* target, const float* values) {
    constexpr int SIZE = Pack<T>::SIZE;
    KVPLAN_UNROLL
    for (int first = 0; first < PIECE; first += SIZE) {
        Pack<T> pack;
        KVPLAN_UNROLL
        for (int i = 0; i < SIZE; ++i) pack.elements[i] = from_float<T>(values[first + i]);
        store_pack(target + first, pack);
    }
}
