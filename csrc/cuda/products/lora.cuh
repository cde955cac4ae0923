// What both halves of a LoRA correction share. For each row x with an adapter  out += (x A^T) B.
//
// Rows of one adapter stand in groups of up to ROWS, so that A and B are read once for a group. Which rows and which
// slot a group has lies on the device, so that a captured step corrects the rows of each replay.
#pragma once

#include "../reduce.cuh"

using Scalar = KVPLAN_SCALAR;
constexpr int VECTOR = KVPLAN_VECTORS ? Pack<Scalar>::SIZE : 1;
constexpr int ROWS = 8;  // of a group
constexpr int MOST_STACKED = 4;

struct LoraParams {
    // [num_rows, inputs]  Scalar, rows x_stride elements apart
    const void* x;
    // [slots, stacked * rank, inputs]  Scalar: A of each of the stacked products
    const void* down;
    // [slots, rank, outputs]  Scalar: B, transposed
    const void* up;
    // [gridDim.y, stacked * rank, ROWS]  float32: x A^T
    float* inner;
    // [num_rows, outputs]  Scalar, rows out_stride elements apart
    void* out;
    // [gridDim.y, ROWS]  int32: numbers of rows, -1 behind the last one
    const int* rows;
    // [gridDim.y]  int32; -1: no group
    const int* slots;
    i64 x_stride;
    i64 out_stride;
    int inputs;
    int outputs;
    int rank;
    int stacked;
    int ends[MOST_STACKED];  // of each stacked product's outputs
};

// Rows of this block's group.
KVPLAN_INLINE int rows_of_group(const LoraParams& params) {
    const int* rows = params.rows + i64(blockIdx.y) * ROWS;
    int count = 0;
    while (count < ROWS && rows[count] >= 0) ++count;
    return count;
}
