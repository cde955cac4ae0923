// LoRA adapters: their slots for one product, and which rows of a step they correct.
//
// A row x of an adapter gets x W^T + (x A^T) B instead of x W^T. Where several products are stacked in one, lying beside
// each other in a row of its result, each has `rank` rows of A of its own.
#pragma once

#include <stdint.h>

// The adapters of one product.
typedef struct kvplan_lora_slots {
  // [slots, stacked * rank, inputs] and [slots, rank, outputs], of the product's storage
  const void* down;
  const void* up;
  int64_t rank, stacked;
  // [stacked]: where each product's outputs end
  const int64_t* ends;
} kvplan_lora_slots;

enum { KVPLAN_LORA_ROWS = 8 };

// The rows that are corrected, in groups of one slot each, which share a reading of A and B.
typedef struct kvplan_lora_rows {
  // [groups, KVPLAN_LORA_ROWS]: numbers of rows, ascending, -1 behind the last
  const int32_t* rows;
  // [groups]
  const int32_t* slots;
  int64_t groups;
} kvplan_lora_rows;
