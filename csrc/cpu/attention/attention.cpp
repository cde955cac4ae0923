// Paged attention with an online softmax (Milakov & Gimelshein 2018; split over the cache as in flash-decoding).
//
// For each item (attention_plan.h) the cache is walked in tiles of up to 64 tokens. A tile's keys give the scores of
// all the item's query rows, the softmax's running maximum and sum are brought up to date, and the tile's values are
// added to the output. Few rows, or many on long keys, read the cache where it lies (attention_direct.h,
// attention_wide.h); others pack it (attention_packed.h): those of a prompt, or of many sequences that share a prefix
// (shared_prefix.h). Where a processor has AMX, these and all but the fewest rows are computed in its tiles (tiles/).
#include <atomic>
#include <new>

#include "attention_packed.h"
#include "attention_wide.h"
#include "tiles/tile_attention.h"
#include "../parallel.h"

namespace kvplan {
namespace {

Partial take_partial(Cutter& cutter, const Call& call, int64_t rows) {
  Partial partial;
  partial.output = cutter.take<float>(rows * call.padded_value);
  partial.maximum = cutter.take<float>(padded_to_lanes(rows));
  partial.sum = cutter.take<float>(rows * kLanes);
  return partial;
}

Scratch take_scratch(Cutter& cutter, const Call& call) {
  Scratch scratch;
  scratch.query = cutter.take<float>(static_cast<int64_t>(call.max_rows) * call.padded_head);
  scratch.scores = cutter.take<float>(static_cast<int64_t>(call.max_rows) * kTileTokens);
  scratch.shrink = cutter.take<float>(padded_to_lanes(call.max_rows) + kLanes);  // the last columns may be more than rows
  const int64_t pair_rows = call.by_pairs ? call.max_rows : 0;
  scratch.query_pairs = cutter.take<BFloat16>(pair_rows * padded_to_pairs(call.args.head_size));
  scratch.packed_keys = cutter.take<float>(call.args.head_size * kTileTokens);
  scratch.packed_values = cutter.take<float>(static_cast<int64_t>(kTileTokens) * call.padded_value);
  scratch.key_rows = cutter.take<const float*>(call.args.head_size);
  scratch.value_rows = cutter.take<const float*>(kTileTokens);
#if KVPLAN_TILE_ATTENTION
  if (call.by_tiles) scratch.tiles = take_tile_scratch(cutter, call.args.head_size, call.max_heads, call.max_rows);
#endif
  scratch.partial = take_partial(cutter, call, call.max_rows);
  return scratch;
}

// visit(row of the item, row of the tensor, query head) for all rows of an item, in order.
template <class Visit>
void for_each_row(const Call& call, const SharedPrefixes& shared, const Item& item, const Visit& visit) {
  int row = 0;
  for (int i = 0; i < item.num_members; ++i) {
    const int64_t token = call.args.query_starts[shared.members[static_cast<size_t>(item.first_member + i)]];
    for (int g = 0; g < call.group; ++g) visit(row++, token, item.first_head * call.group + g);
  }
  if (item.num_members > 0) return;
  const int64_t first_row = call.args.query_starts[item.sequence] + item.first_query;
  for (int head = item.first_head; head < item.first_head + item.num_heads; ++head)
    for (int query = 0; query < item.num_queries; ++query)
      for (int g = 0; g < call.group; ++g) visit(row++, first_row + query, head * call.group + g);
}

template <class T>
void load_queries(const Call& call, const SharedPrefixes& shared, const Item& item, float* query) {
  const kvplan_attention& args = call.args;
  const int head_size = static_cast<int>(args.head_size);
  for_each_row(call, shared, item, [&](int row, int64_t token, int head) {
    const T* source = static_cast<const T*>(args.query) + token * args.query_row_stride + head * args.query_head_stride;
    float* target = query + row * call.padded_head;
    int column = 0;
    for (; column + kLanes <= head_size; column += kLanes) store(target + column, load(source + column) * args.scale);
    if (column < head_size)
      store(target + column, load_part(source + column, head_size - column) * args.scale);
  });
}

// The queries as they are, for dot products of pairs.
void load_query_pairs(const Call& call, const SharedPrefixes& shared, const Item& item, BFloat16* query) {
  const kvplan_attention& args = call.args;
  const size_t head_size = static_cast<size_t>(args.head_size);
  const size_t padded = static_cast<size_t>(padded_to_pairs(args.head_size));
  for_each_row(call, shared, item, [&](int row, int64_t token, int head) {
    BFloat16* target = query + static_cast<size_t>(row) * padded;
    std::memcpy(target,
                static_cast<const BFloat16*>(args.query) + token * args.query_row_stride + head * args.query_head_stride,
                head_size * sizeof(BFloat16));
    std::memset(target + head_size, 0, (padded - head_size) * sizeof(BFloat16));
  });
}

// What a row's output is multiplied with: one by the sum of exponentials, the head's sink among them.
float output_factor(const kvplan_attention& args, int head, float maximum, float sum) {
  if (args.sinks == nullptr) return 1.0f / sum;
  const float sink = args.sinks[head];
  if (sink <= maximum) return 1.0f / (sum + std::exp(sink - maximum));
  const float shrink = std::exp(maximum - sink);
  return shrink / (sum * shrink + 1.0f);
}

template <class T>
void store_output(const Call& call, const SharedPrefixes& shared, const Item& item, const Partial& partial) {
  const kvplan_attention& args = call.args;
  const int size = static_cast<int>(args.value_size);
  for_each_row(call, shared, item, [&](int row, int64_t token, int head) {
    T* target = static_cast<T*>(args.out) + token * args.out_row_stride + head * args.out_head_stride;
    const float* source = partial.output + row * call.padded_value;
    const float factor = output_factor(args, head, partial.maximum[row], sum_of(load(partial.sum + row * kLanes)));
    int column = 0;
    for (; column + kLanes <= size; column += kLanes) store(target + column, load(source + column) * factor);
    if (column < size) store_part(target + column, load(source + column) * factor, size - column);
  });
}

// Everything one call works with, cut from the arena.
struct Workspace {
  Item* items;
  int32_t* owners;                // [num_sequences, pieces_per_sequence], see fill_items
  Scratch* workers;               // [threads]
  Partial* parts;                 // [plan.max_parts + plan.max_shared_parts]
  std::atomic<int32_t>* missing;  // the same: parts still to come, at the index of the first
};

// One call: what all threads read, and the memory that they share.
struct Run {
  const Call& call;
  const SharedPrefixes& shared;
  const Plan& plan;
  Workspace space;
};

void store_item(const Run& run, const Item& item, const Partial& partial) {
  if (run.call.args.storage == KVPLAN_BFLOAT16) {
    store_output<BFloat16>(run.call, run.shared, item, partial);
  } else {
    store_output<float>(run.call, run.shared, item, partial);
  }
}

Workspace take_workspace(Cutter& cutter, const Call& call, const Plan& plan, int threads, bool real) {
  const int64_t parts = plan.max_parts + plan.max_shared_parts;
  Workspace space;
  space.items = cutter.take<Item>(plan.max_items);
  space.owners = cutter.take<int32_t>(
      plan.max_shared_parts > 0 ? call.args.num_sequences * pieces_per_sequence(call.args, plan) : 0);
  space.workers = cutter.take<Scratch>(threads);
  space.parts = cutter.take<Partial>(parts);
  space.missing = cutter.take<std::atomic<int32_t>>(parts);
  for (int64_t i = 0; i < threads; ++i) {
    const Scratch scratch = take_scratch(cutter, call);
    if (!real) continue;
    space.workers[i] = scratch;
    point_at_packed_rows(call, space.workers[i]);
  }
  for (int64_t i = 0; i < parts; ++i) {
    const Partial part = take_partial(cutter, call, i < plan.max_parts ? plan.max_rows : plan.max_shared_rows);
    if (real) space.parts[i] = part;
  }
  return space;
}

// Every part of an item is one to come; a prefix's part comes in pieces, one for each KV head.
void count_missing_parts(const Run& run, int64_t num_items) {
  const Workspace& space = run.space;
  for (int64_t i = 0; i < num_items; ++i) {
    const Item& item = space.items[i];
    if (item.num_members > 0 || item.num_parts <= 1) continue;
    const PrefixGroup* group = item.direct ? run.shared.of(item.sequence) : nullptr;
    const int prefix_parts = group == nullptr ? 0 : group->num_parts;
    if (item.part == item.first_part + prefix_parts)
      new (&space.missing[item.first_part])
          std::atomic<int32_t>(item.num_parts - prefix_parts + prefix_parts * item.num_heads);
  }
}

// Notes that a part of the item is there; the thread that brings the last one merges them in order and writes the output.
void finish_part(const Run& run, const Item& item) {
  const Workspace& space = run.space;
  const int rows = item_rows(run.call, item);
  if (space.missing[item.first_part].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  Partial& total = space.parts[item.first_part];
  for (int i = 1; i < item.num_parts; ++i) merge(run.call, rows, space.parts[item.first_part + i], total);
  store_item(run, item, total);
}

// Hands each member's rows of a shared prefix over to the member's own item.
void finish_shared(const Run& run, const Item& item, const Partial& partial) {
  const int64_t group = run.call.group, padded = run.call.padded_value;
  const int64_t pieces = pieces_per_sequence(run.call.args, run.plan);
  for (int64_t i = 0; i < item.num_members; ++i) {
    const int64_t member = run.shared.members[static_cast<size_t>(item.first_member + i)];
    const Item& owner = run.space.items[run.space.owners[member * pieces + item.first_head / run.plan.direct_heads]];
    const Partial& part = run.space.parts[owner.first_part + item.part];
    const int64_t from = i * group, to = (item.first_head - owner.first_head) * group;
    const auto copy = [&](float* target, const float* source, int64_t width) {
      std::memcpy(target + to * width, source + from * width, sizeof(float) * static_cast<size_t>(group * width));
    };
    copy(part.output, partial.output, padded);
    copy(part.maximum, partial.maximum, 1);
    copy(part.sum, partial.sum, kLanes);
    finish_part(run, owner);
  }
}

// find_following(): the item that this thread probably takes next, or null.
template <class T, class Find>
void attend_over_cache(const Call& call, const Item& item, const Find& find_following, Scratch& scratch) {
#if KVPLAN_TILE_ATTENTION
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (takes_tiles(call, item)) {
      attend_in_tiles(call, item, find_following, scratch);
      return;
    }
  }
#endif
  if constexpr (!kHasScales<T>) {  // reads_wide_keys() is never true of these
    if (item.direct && call.by_wide_keys) {
      attend_wide<T>(call, item, scratch);
      return;
    }
  }
  if (item.direct) {
    attend_directly<T>(call, item, find_following, scratch);
  } else {
    attend_packed<T>(call, item, scratch);
  }
}

template <class Find>
void run_item(const Run& run, const Item& item, const Find& find_following, Scratch scratch) {
  const Call& call = run.call;
  if (item.num_parts > 1) scratch.partial = run.space.parts[item.part];
  clear(call, item_rows(call, item), scratch.partial);
  if (takes_tiles(call, item) || (call.by_pairs && item.direct)) {
    load_query_pairs(call, run.shared, item, scratch.query_pairs);
  } else if (call.args.storage == KVPLAN_BFLOAT16) {
    load_queries<BFloat16>(call, run.shared, item, scratch.query);
  } else {
    load_queries<float>(call, run.shared, item, scratch.query);
  }
  if (call.args.kv_storage == KVPLAN_BFLOAT16) {
    attend_over_cache<BFloat16>(call, item, find_following, scratch);
  } else if (call.args.kv_storage == KVPLAN_FLOAT8_E4M3) {
    attend_over_cache<Float8E4M3>(call, item, find_following, scratch);
  } else if (call.args.kv_storage == KVPLAN_INT8) {
    attend_over_cache<Int8>(call, item, find_following, scratch);
  } else {
    attend_over_cache<float>(call, item, find_following, scratch);
  }
  if (item.num_members > 0) {
    finish_shared(run, item, scratch.partial);
  } else if (item.num_parts > 1) {
    finish_part(run, item);
  } else {
    store_item(run, item, scratch.partial);
  }
}

}  // namespace

int run_attention(const kvplan_attention& args, int threads) {
  static thread_local Arena arena;
  static thread_local SharedPrefixes shared;
  find_shared_prefixes(args, shared);
  const Plan plan = plan_attention(args, shared, threads);
  const bool by_pairs = kHasPairs && args.storage == KVPLAN_BFLOAT16 && args.kv_storage == KVPLAN_BFLOAT16;
  const Call call{args, static_cast<int>(args.num_heads / args.num_kv_heads), padded_to_lanes(args.head_size),
                  padded_to_lanes(args.value_size), plan.max_rows, plan.direct_heads, shared.members.data(), by_pairs,
                  suits_tiles(args), reads_wide_keys(args)};
  Cutter measure(nullptr);
  take_workspace(measure, call, plan, threads, false);
  if (!arena.reserve(measure.used())) return KVPLAN_NO_MEMORY;
  Cutter cutter(arena.base());
  const Run run{call, shared, plan, take_workspace(cutter, call, plan, threads, true)};
  const int64_t num_items = fill_items(args, shared, plan, run.space.items, run.space.owners);
  count_missing_parts(run, num_items);
  for_each_shared_item(num_items, threads, [&](int worker, int64_t i, const auto& next) {
    const auto find_following = [&] { return next() < num_items ? run.space.items + next() : nullptr; };
    run_item(run, run.space.items[i], find_following, run.space.workers[worker]);
  });
  return KVPLAN_OK;
}

}  // namespace kvplan

int kvplan_paged_attention(const kvplan_attention* args, int threads) {
  const int status = kvplan::check_attention(*args);
  return status == KVPLAN_OK ? kvplan::run_attention(*args, threads > 0 ? threads : 1) : status;
}

int64_t kvplan_tokens_read_once(const kvplan_attention* args) {
  if (kvplan::check_attention(*args) != KVPLAN_OK) return -1;
  kvplan::SharedPrefixes shared;
  kvplan::find_shared_prefixes(*args, shared);
  kvplan::plan_attention(*args, shared, 1);
  int64_t tokens = 0;
  for (const kvplan::PrefixGroup& group : shared.groups) tokens += int64_t{group.num_members - 1} * group.tokens;
  return tokens;
}
