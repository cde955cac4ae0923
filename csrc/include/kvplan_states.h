// The CPU kernels of layers with a state: as in kvplan_cpu.h, plain C with strides in elements.
//
// A state is read and written where it lies in the pool. A sequence whose first new token is at position 0 starts from
// zeros, whatever its blocks hold. Sequences without new tokens, or with -1 in the first column of their table, are left
// alone.
#pragma once

#include "kvplan_cpu.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// One part of one layer's state, of all sequences, and the tokens that a step computes.
typedef struct kvplan_state {
  // the pool: [num_blocks, block_bytes]
  void* blocks;
  int64_t block_bytes, num_blocks;
  // [num_sequences, table_width]: the blocks of each sequence's states
  const int32_t* tables;
  int64_t table_stride, table_width;
  // [num_sequences + 1]: rows of the step's tokens; the last is at most num_tokens
  const int32_t* query_starts;
  // [num_tokens]
  const int64_t* positions;
  int64_t num_sequences, num_tokens;
  // `rows` rows of `columns` elements of `storage`. Row 0 lies in block `slot` of a table, `offset` bytes from its start;
  // rows fill the blocks from there on in order, and one that does not fit begins the next
  int64_t slot, offset, rows, columns;
  int32_t storage;
} kvplan_state;

// A causal convolution of each channel over the tokens of each sequence, whose state is its last inputs, oldest first:
// rows = taps - 1, columns = channels.
typedef struct kvplan_convolution {
  kvplan_state state;
  // x and out [num_tokens, channels], of `storage`; may be the same
  const void* x;
  void* out;
  int64_t x_stride, out_stride;
  // [taps, channels], oldest first
  const float* weight;
  // [channels]; NULL: none
  const float* bias;
  int64_t channels, taps;
  int32_t silu;  // out = silu(convolution)
  int32_t storage;
} kvplan_convolution;

// 2 to KVPLAN_MOST_TAPS taps; KVPLAN_BAD_INDEX for others and for blocks outside of the pool.
enum { KVPLAN_MOST_TAPS = 8 };
int kvplan_convolve(const kvplan_convolution* args, int threads);

// The gated delta rule: each head has a state S [value_size, key_size], a row of it for each element of its values, and
//
//   S = S * exp(g), element by element of a row;   d = (v - S k) * b;   S = S + d k^T;   out = S q
//
// with g = -rate * softplus(decay + decay_bias), b = strength_scale * sigmoid(strength), k = key / |key| and
// q = scale * query / |query|. Without strengths d = v, with keys and queries as they are, and without decays g = -rate
// (linear attention). Head h has the query and key of head h * key_heads / heads.
typedef struct kvplan_delta_rule {
  kvplan_state state;  // rows: heads * value_size; columns: key_size, at most KVPLAN_MOST_KEY_SIZE
  // [num_tokens, key_heads, key_size], of `storage`
  const void *query, *key;
  // [num_tokens, heads, value_size]; out may be value
  const void* value;
  void* out;
  // [num_tokens, heads, or with element_decays heads * key_size]; NULL: none
  const void* decay;
  // [num_tokens, heads]; NULL: none
  const void* strength;
  int64_t query_stride, key_stride, value_stride, out_stride, decay_stride, strength_stride;
  // [heads]
  const float* rate;
  // as the decays of a token
  const float* decay_bias;
  int64_t heads, key_heads, key_size, value_size;
  float scale, strength_scale;
  int32_t element_decays;  // one for each element of a key
  int32_t storage;
} kvplan_delta_rule;

enum { KVPLAN_MOST_KEY_SIZE = 256 };
int kvplan_run_delta_rule(const kvplan_delta_rule* args, int threads);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
