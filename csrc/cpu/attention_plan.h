// How one call's attention is cut into items of work.
#pragma once

#include <cstdint>

#include "../include/kvplan_cpu.h"

namespace kvplan {

// Some KV heads of one sequence, for some of its query tokens, over some of its cache:
//
//   positions   0 ........ kv_begin ......... kv_end ..... seq_len
//   query       num_queries tokens from first_query on, each with all query heads of the item's KV heads
//
// When an item's range was split, its parts carry numbers first_part .. first_part + num_parts and are merged by the
// thread that finishes last.
struct Item {
  int32_t sequence;
  int32_t first_head, num_heads;
  int32_t first_query, num_queries;
  int32_t kv_begin, kv_end;
  int32_t part, first_part, num_parts;
  bool direct;
};

struct Plan {
  int64_t max_items, max_parts;  // what to reserve
  int32_t max_rows;              // query rows of the largest item
  int32_t direct_queries;        // sequences with no more new tokens than this read the cache directly, ...
  int32_t direct_heads;          // ... this many KV heads at a time
  int32_t packed_queries;        // the others pack it, for this many query tokens at a time
  double cost_target;            // split what costs more; 0: split nothing
};

// Checks every index that the call will use. KVPLAN_OK or KVPLAN_BAD_INDEX.
int check_attention(const kvplan_attention& args);

Plan plan_attention(const kvplan_attention& args, int threads);

// Writes the items, returns their number. items [plan.max_items]
int64_t fill_items(const kvplan_attention& args, const Plan& plan, Item* items);

}  // namespace kvplan
