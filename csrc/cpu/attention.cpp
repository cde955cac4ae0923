// Paged attention with an online softmax (Milakov & Gimelshein 2018; split over the cache as in flash-decoding).
//
// For each item (attention_plan.h) the cache is walked in tiles of up to 64 tokens. A tile's keys give the scores of
// all the item's query rows, the softmax's running maximum and sum are brought up to date, and the tile's values are
// added to the output. Few rows read the cache where it lies (attention_direct.h), many pack it (attention_packed.h).
#include <atomic>
#include <new>

#include "attention_direct.h"
#include "attention_packed.h"
#include "parallel.h"

namespace kvplan {
namespace {

Partial take_partial(Cutter& cutter, const Call& call) {
  Partial partial;
  partial.output = cutter.take<float>(static_cast<int64_t>(call.max_rows) * call.padded_head);
  partial.maximum = cutter.take<float>(call.max_rows);
  partial.sum = cutter.take<float>(static_cast<int64_t>(call.max_rows) * kLanes);
  return partial;
}

Scratch take_scratch(Cutter& cutter, const Call& call) {
  Scratch scratch;
  scratch.query = cutter.take<float>(static_cast<int64_t>(call.max_rows) * call.padded_head);
  scratch.scores = cutter.take<float>(static_cast<int64_t>(call.max_rows) * kTileTokens);
  scratch.packed_keys = cutter.take<float>(call.args.head_size * kTileTokens);
  scratch.packed_values = cutter.take<float>(static_cast<int64_t>(kTileTokens) * call.padded_head);
  scratch.key_rows = cutter.take<const float*>(call.args.head_size);
  scratch.value_rows = cutter.take<const float*>(kTileTokens);
  scratch.partial = take_partial(cutter, call);
  return scratch;
}

// visit(row of the item, row of the tensor, query head) for all rows of an item, in order.
template <class Visit>
void for_each_row(const Call& call, const Item& item, const Visit& visit) {
  const int64_t first_row = call.args.query_starts[item.sequence] + item.first_query;
  int row = 0;
  for (int head = item.first_head; head < item.first_head + item.num_heads; ++head)
    for (int query = 0; query < item.num_queries; ++query)
      for (int g = 0; g < call.group; ++g) visit(row++, first_row + query, head * call.group + g);
}

template <class T>
void load_queries(const Call& call, const Item& item, float* query) {
  const kvplan_attention& args = call.args;
  const int head_size = static_cast<int>(args.head_size);
  for_each_row(call, item, [&](int row, int64_t token, int head) {
    const T* source = static_cast<const T*>(args.query) + token * args.query_row_stride + head * args.query_head_stride;
    float* target = query + row * call.padded_head;
    int column = 0;
    for (; column + kLanes <= head_size; column += kLanes) store(target + column, load(source + column) * args.scale);
    if (column < head_size)
      store(target + column, load_part(source + column, head_size - column) * args.scale);
  });
}

template <class T>
void store_output(const Call& call, const Item& item, const Partial& partial) {
  const kvplan_attention& args = call.args;
  const int head_size = static_cast<int>(args.head_size);
  for_each_row(call, item, [&](int row, int64_t token, int head) {
    T* target = static_cast<T*>(args.out) + token * args.out_row_stride + head * args.out_head_stride;
    const float* source = partial.output + row * call.padded_head;
    const float factor = 1.0f / sum_of(load(partial.sum + row * kLanes));
    int column = 0;
    for (; column + kLanes <= head_size; column += kLanes) store(target + column, load(source + column) * factor);
    if (column < head_size) store_part(target + column, load(source + column) * factor, head_size - column);
  });
}

void store_item(const Call& call, const Item& item, const Partial& partial) {
  if (call.args.storage == KVPLAN_BFLOAT16) {
    store_output<BFloat16>(call, item, partial);
  } else {
    store_output<float>(call, item, partial);
  }
}

// Everything one call works with, cut from the arena.
struct Workspace {
  Item* items;
  Scratch* workers;              // [threads]
  Partial* parts;                // [plan.max_parts]
  std::atomic<int32_t>* missing;  // [plan.max_parts]: parts still to come, at the index of the first
};

Workspace take_workspace(Cutter& cutter, const Call& call, const Plan& plan, int threads, bool real) {
  Workspace space;
  space.items = cutter.take<Item>(plan.max_items);
  space.workers = cutter.take<Scratch>(threads);
  space.parts = cutter.take<Partial>(plan.max_parts);
  space.missing = cutter.take<std::atomic<int32_t>>(plan.max_parts);
  for (int64_t i = 0; i < threads; ++i) {
    const Scratch scratch = take_scratch(cutter, call);
    if (!real) continue;
    space.workers[i] = scratch;
    point_at_packed_rows(call, space.workers[i]);
  }
  for (int64_t i = 0; i < plan.max_parts; ++i) {
    const Partial part = take_partial(cutter, call);
    if (real) space.parts[i] = part;
  }
  return space;
}

// Keeps the part just computed; the thread that brings the last part merges them in order and writes the output.
void finish_part(const Call& call, const Item& item, Workspace& space) {
  const int rows = item_rows(call, item);
  if (space.missing[item.first_part].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  Partial& total = space.parts[item.first_part];
  for (int i = 1; i < item.num_parts; ++i) merge(call, rows, space.parts[item.first_part + i], total);
  store_item(call, item, total);
}

template <class T>
void attend_over_cache(const Call& call, const Item& item, Scratch& scratch) {
  if (item.direct) {
    attend_directly<T>(call, item, scratch);
  } else {
    attend_packed<T>(call, item, scratch);
  }
}

void run_item(const Call& call, const Item& item, Workspace& space, Scratch scratch) {
  if (item.num_parts > 1) scratch.partial = space.parts[item.part];
  clear(call, item_rows(call, item), scratch.partial);
  if (call.args.storage == KVPLAN_BFLOAT16) {
    load_queries<BFloat16>(call, item, scratch.query);
  } else {
    load_queries<float>(call, item, scratch.query);
  }
  if (call.args.kv_storage == KVPLAN_BFLOAT16) {
    attend_over_cache<BFloat16>(call, item, scratch);
  } else if (call.args.kv_storage == KVPLAN_FLOAT8_E4M3) {
    attend_over_cache<Float8E4M3>(call, item, scratch);
  } else {
    attend_over_cache<float>(call, item, scratch);
  }
  if (item.num_parts > 1) {
    finish_part(call, item, space);
  } else {
    store_item(call, item, scratch.partial);
  }
}

}  // namespace

int run_attention(const kvplan_attention& args, int threads) {
  static thread_local Arena arena;
  const Plan plan = plan_attention(args, threads);
  const Call call{args, static_cast<int>(args.num_heads / args.num_kv_heads), padded_to_lanes(args.head_size),
                  plan.max_rows};
  Cutter measure(nullptr);
  take_workspace(measure, call, plan, threads, false);
  if (!arena.reserve(measure.used())) return KVPLAN_NO_MEMORY;
  Cutter cutter(arena.base());
  Workspace space = take_workspace(cutter, call, plan, threads, true);
  const int64_t num_items = fill_items(args, plan, space.items);
  for (int64_t i = 0; i < num_items; ++i) {
    const Item& item = space.items[i];
    if (item.num_parts > 1 && item.part == item.first_part)
      new (&space.missing[item.first_part]) std::atomic<int32_t>(item.num_parts);
  }
  for_each_item(num_items, threads, [&](int worker, int64_t i) {
    run_item(call, space.items[i], space, space.workers[worker]);
  });
  return KVPLAN_OK;
}

}  // namespace kvplan

int kvplan_paged_attention(const kvplan_attention* args, int threads) {
  const int status = kvplan::check_attention(*args);
  return status == KVPLAN_OK ? kvplan::run_attention(*args, threads > 0 ? threads : 1) : status;
}
