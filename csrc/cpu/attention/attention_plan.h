// How one call's attention is cut into items of work.
#pragma once

#include <cstdint>

#include "../../include/kvplan_cpu.h"
#include "shared_prefix.h"

namespace kvplan {

// Some KV heads of one sequence, for some of its query tokens, over some of its cache:
//
//   positions   0 ........ kv_begin ......... kv_end ..... seq_len
//   query       num_queries tokens from first_query on, each with all query heads of the item's KV heads
//
// When an item's range was split, its parts carry numbers first_part .. first_part + num_parts and are merged by the
// thread that finishes last.
//
// An item over a shared prefix (num_members > 0) has one KV head and one query token of each member, and `sequence` is
// one of them. Its rows are part number `part` of each member's own items (fill_items' owners), before the parts of these.
struct Item {
  int32_t sequence;
  int32_t first_head, num_heads;
  int32_t first_query, num_queries;
  int32_t kv_begin, kv_end;
  int32_t part, first_part, num_parts;
  int32_t first_member, num_members;
  bool direct;
};

struct Plan {
  int64_t max_items;             // what to reserve: items,
  int64_t max_parts;             // parts of max_rows,
  int64_t max_shared_parts;      // parts of max_shared_rows; their numbers begin at max_parts
  int32_t max_rows;              // query rows of the largest item
  int32_t max_shared_rows;       // query rows of the largest item of a sequence with a shared prefix
  int32_t direct_queries;        // sequences with no more new tokens than this read the cache directly, ...
  int32_t direct_heads;          // ... this many KV heads at a time
  int32_t packed_queries;        // the others pack it, for this many query tokens at a time
  int32_t shared_members;        // members of a group whose rows are computed together
  double cost_target;            // split what costs more; 0: split nothing
};

// Items of a sequence with a shared prefix, one for each direct_heads of its KV heads: the last part of each.
inline int64_t pieces_per_sequence(const kvplan_attention& args, const Plan& plan) {
  return (args.num_kv_heads + plan.direct_heads - 1) / plan.direct_heads;
}

// Checks every index that the call will use. KVPLAN_OK or KVPLAN_BAD_INDEX.
int check_attention(const kvplan_attention& args);

// Also decides how many parts each group's prefix is cut into.
Plan plan_attention(const kvplan_attention& args, SharedPrefixes& shared, int threads);

// Writes the items, returns their number. items [plan.max_items]. owners [num_sequences, pieces_per_sequence]: for a
// sequence with a shared prefix, which item (the last of its parts) has the KV heads.
int64_t fill_items(const kvplan_attention& args, const SharedPrefixes& shared, const Plan& plan, Item* items,
                   int32_t* owners);

}  // namespace kvplan
