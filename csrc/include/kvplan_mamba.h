// The CPU kernels of Mamba's layers: as in kvplan_states.h, over states that lie in the pool.
#pragma once

#include "kvplan_states.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// Mamba: each channel has a row of the state. With step = softplus(steps + step_bias) it becomes
// exp(step * decay) * row + step * x * B, and out = the sum of row * C, plus skip * x.
typedef struct kvplan_mamba1 {
  kvplan_state state;  // rows: channels
  // [num_tokens, rows], of `storage`; out may be x
  const void *x, *steps;
  // [num_tokens, columns]
  const void *b, *c;
  void* out;
  int64_t x_stride, steps_stride, b_stride, c_stride, out_stride;
  // [rows, columns]: negative
  const float* decay;
  // [rows]
  const float *skip, *step_bias;
  int32_t storage;
} kvplan_mamba1;

int kvplan_mamba1_scan(const kvplan_mamba1* args, int threads);

// Mamba 2: the rows of a head share its step, within limits, and its decay; B and C are shared by the heads of a group.
typedef struct kvplan_mamba2 {
  kvplan_state state;  // rows: heads * rows
  // [num_tokens, heads, rows], of `storage`; out may be x
  const void* x;
  // [num_tokens, heads]
  const void* steps;
  // [num_tokens, groups, columns]
  const void *b, *c;
  void* out;
  int64_t x_stride, steps_stride, b_stride, c_stride, out_stride;
  // [heads]; decay is negative
  const float *decay, *skip, *step_bias;
  float least_step, most_step;
  int64_t heads, rows, groups;
  int32_t storage;
} kvplan_mamba2;

// KVPLAN_BAD_INDEX where the state is not that of these heads, or outside of the pool.
int kvplan_mamba2_scan(const kvplan_mamba2* args, int threads);

// x = x * silu(gate), or * sigmoid(gate); with a weight, each of `groups` equal parts of a row is divided by the root of its mean square, and
// multiplied with the weight: behind the gate, or before it.
typedef struct kvplan_gated_rows {
  // [rows, width], of `storage`
  void* x;
  const void* gate;
  int64_t x_stride, gate_stride, rows, width, groups;
  // [width], or [width / groups] where all groups have the same; of `storage`; NULL: no norm
  const void* weight;
  float eps;
  int32_t same_weight, norm_first, sigmoid, storage;
} kvplan_gated_rows;

int kvplan_gate_rows(const kvplan_gated_rows* args, int threads);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
