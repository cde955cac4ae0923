// What LoRA adapters add to a product.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum { KVPLAN_LORA_ROWS = 8 };

// out[row] += (x[row] A^T) B for the rows of each group, all of which have the adapter of one slot. `stacked` products
// lie beside each other in a row of out; each has `rank` rows of A of its own.
typedef struct kvplan_lora {
  // [rows, inputs] and [rows, outputs], of `storage`
  const void* x;
  void* out;
  int64_t x_stride, out_stride;
  // [slots, stacked * rank, inputs] and [slots, rank, outputs], of `storage`
  const void* down;
  const void* up;
  int64_t inputs, outputs, rank, stacked;
  // [stacked]: where each product's outputs end
  const int64_t* ends;
  // [groups, KVPLAN_LORA_ROWS]: numbers of rows, -1 behind the last; [groups]
  const int32_t* rows;
  const int32_t* slots;
  int64_t groups;
  int32_t storage;
} kvplan_lora;

int kvplan_correct(const kvplan_lora* args, int threads);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
