// What the products of a mixture of experts share: which rows one block multiplies, and what becomes of a product.
//
// A (row, chosen expert) is a pair:  pair = row * top_k + place among the row's choices. A block takes an item, up to so
// many pairs of one expert, and some of that expert's outputs. Each file is compiled for one storage type, one activation
// and one size of items; the sizes of the matrices are arguments.
#pragma once

#include "../activate.cuh"
#include "../reduce.cuh"

using Scalar = KVPLAN_SCALAR;  // of inputs and weights
using Out = KVPLAN_OUT;        // Scalar, or float32

constexpr int ROWS = KVPLAN_ROWS;  // pairs of an item, at most

struct ProductParams {
    // [rows, inputs]  Scalar, rows x_stride elements apart; pair p reads row p / pairs_per_row
    const void* x;
    // [experts, HALVES * outputs, inputs]  Scalar; starts at a multiple of 16 bytes, as inputs are whole vectors
    const void* weight;
    // [experts, HALVES * outputs]  Scalar; null without a bias
    const void* bias;
    // [num_items, 4]  int32: expert (-1: nothing to do), first place in `pairs`, how many, place among its expert's items
    //   (mixture_sort.cu); null: pairs in order
    const int* items;
    // [num_pairs]  pair numbers, sorted by expert; not read without items
    const int* pairs;
    // [num_pairs]  expert of each pair (-1: nothing to do), where there are no items; null: expert 0
    const int* experts;
    // [num_pairs, num_outputs]  Out, rows out_stride elements apart
    void* out;
    i64 x_stride;
    i64 out_stride;
    int inputs;
    int outputs;       // of an expert
    int first_output;  // what this launch computes of them
    int num_outputs;
    int num_pairs;
    int pairs_per_row;
    float limit;  // of swiglu_oai
};

struct Item {
    int expert;
    int first;  // place in the sorted pairs
    int count;
};

KVPLAN_INLINE Item item_of(int number, const ProductParams& params) {
    if (params.items != nullptr) return {params.items[4 * number], params.items[4 * number + 1], params.items[4 * number + 2]};
    const int first = number * ROWS;
    return {params.experts != nullptr ? params.experts[first] : 0, first, smaller(ROWS, params.num_pairs - first)};
}

KVPLAN_INLINE int pair_of(const Item& item, int row, const ProductParams& params) {
    const int place = item.first + smaller(row, item.count - 1);
    return params.items != nullptr ? params.pairs[place] : place;
}

KVPLAN_INLINE const Scalar* input_row(int pair, const ProductParams& params) {
    return static_cast<const Scalar*>(params.x) + pair / params.pairs_per_row * params.x_stride;
}

// The row of an expert's weight that makes `output` (its gate, or for half 1 what the gate is multiplied with).
KVPLAN_INLINE const Scalar* weight_row(int expert, int half, int output, const ProductParams& params) {
    const i64 row = (i64(expert) * HALVES + half) * params.outputs + output;
    return static_cast<const Scalar*>(params.weight) + row * params.inputs;
}

KVPLAN_INLINE float bias_of(int expert, int half, int output, const ProductParams& params) {
    if (params.bias == nullptr) return 0.0f;
    return to_float(static_cast<const Scalar*>(params.bias)[(i64(expert) * HALVES + half) * params.outputs + output]);
}
