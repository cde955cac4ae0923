#include "attention_plan.h"

#include <algorithm>

#include "attention_wide.h"
#include "tiles/tile_layout.h"

namespace kvplan {
namespace {

// Query rows (tokens x heads of the group) that one packed pass over the cache serves: more where what a pass packs for tiles
// is large (measured: benchmarks/README.md).
constexpr int64_t kPackedItemRows = 48, kTiledItemRows = 96;
// Floats of a direct item's queries, and of its output: as much as fits the first-level cache beside the tile.
constexpr int64_t kDirectItemFloats = 4096;
// What loading a cache row costs, in query rows of arithmetic on it.
constexpr int64_t kLoadRows = 6;
// Items per thread that cutting aims at: the last to finish then keeps the others waiting for a quarter at most, and a thread
// reads long runs of neighbouring sequences (measured: benchmarks/README.md).
constexpr int64_t kItemsPerThread = 4;
// A part shorter than this is not worth its merge. A multiple of every tile.
constexpr int64_t kMinPartTokens = 128;

int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

int64_t most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct Span {
  int64_t begin, end;
};

int64_t query_length(const kvplan_attention& args, int64_t sequence) {
  return args.query_starts[sequence + 1] - args.query_starts[sequence];
}

// Cache positions that query tokens [first, first + count) of a sequence see between them.
Span visible_span(const kvplan_attention& args, int64_t sequence, int64_t first, int64_t count) {
  const int64_t position = args.seq_lens[sequence] - query_length(args, sequence) + first;
  return {args.window > 0 ? most(0, position + 1 - args.window) : 0, position + count};
}

// A rectangle of work before it is split over the cache.
struct Piece {
  int64_t sequence, first_head, num_heads, first_query, num_queries;
  bool direct;
  Span span;
  const PrefixGroup* group;  // whose prefix comes before the span, or null
};

double cost_of(int64_t heads, int64_t rows, int64_t tokens) {
  return static_cast<double>(heads * (rows + kLoadRows) * tokens);
}

double piece_cost(const kvplan_attention& args, const Piece& piece) {
  const int64_t rows = piece.num_queries * (args.num_heads / args.num_kv_heads);
  return cost_of(piece.num_heads, rows, piece.span.end - piece.span.begin);
}

template <class Visit>
void for_each_piece(const kvplan_attention& args, const SharedPrefixes& shared, const Plan& plan, const Visit& visit) {
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const int64_t query_len = query_length(args, s);
    const bool direct = query_len <= plan.direct_queries || args.chosen != nullptr;
    const int64_t queries = args.chosen != nullptr ? 1 : (direct ? most(query_len, 1) : plan.packed_queries);
    const int64_t heads = direct ? plan.direct_heads : 1;
    const PrefixGroup* group = direct ? shared.of(s) : nullptr;
    for (int64_t first = 0; first < query_len; first += queries) {
      const int64_t count = least(queries, query_len - first);
      Span span = visible_span(args, s, first, count);
      if (group != nullptr) span.begin = group->tokens;
      if (args.chosen != nullptr) span.end = least(span.end, args.chosen_stride);
      for (int64_t head = 0; head < args.num_kv_heads; head += heads)
        visit(Piece{s, head, least(heads, args.num_kv_heads - head), first, count, direct, span, group});
    }
  }
}

// visit(group, KV head, first member, number of members) for what is computed together of the shared prefixes.
template <class Visit>
void for_each_shared_piece(const kvplan_attention& args, const SharedPrefixes& shared, const Plan& plan,
                           const Visit& visit) {
  for (const PrefixGroup& group : shared.groups)
    for (int64_t head = 0; head < args.num_kv_heads; ++head)
      for (int64_t first = 0; first < group.num_members; first += plan.shared_members)
        visit(group, head, group.first_member + first, least(plan.shared_members, group.num_members - first));
}

// Cuts each prefix such that its pieces keep all threads busy to the end.
void cut_prefixes(const kvplan_attention& args, SharedPrefixes& shared, const Plan& plan) {
  if (plan.cost_target <= 0.0) return;
  const int64_t heads_per_kv_head = args.num_heads / args.num_kv_heads;
  for (PrefixGroup& group : shared.groups) {
    const int64_t rows = least(plan.shared_members, group.num_members) * heads_per_kv_head;
    const auto wanted = static_cast<int64_t>(cost_of(1, rows, group.tokens) / plan.cost_target);
    group.num_parts = static_cast<int32_t>(most(1, least(wanted, group.tokens / kMinPartTokens)));
  }
}

int64_t parts_of(const Plan& plan, const Piece& piece, double cost) {
  if (plan.cost_target <= 0.0 || cost <= plan.cost_target) return 1;
  const int64_t length = piece.span.end - piece.span.begin;
  return most(1, least(static_cast<int64_t>(cost / plan.cost_target), length / kMinPartTokens));
}

bool blocks_in_pool(const kvplan_attention& args, int64_t sequence) {
  const Span span = visible_span(args, sequence, 0, query_length(args, sequence));
  const int64_t end = divided_up(span.end, args.block_size);
  if (end > args.block_table_width) return false;
  for (const int32_t* tables : {args.block_tables, args.value_tables}) {
    if (tables == nullptr) continue;
    const int32_t* table = tables + sequence * args.block_table_stride;
    for (int64_t i = span.begin / args.block_size; i < end; ++i)
      if (table[i] < 0 || table[i] >= args.num_blocks) return false;
  }
  return true;
}

bool chooses_seen_tokens(const kvplan_attention& args, int64_t sequence) {
  const int64_t query_len = query_length(args, sequence);
  for (int64_t query = 0; query < query_len; ++query) {
    const int64_t position = args.seq_lens[sequence] - query_len + query;
    const int32_t* chosen = args.chosen + (args.query_starts[sequence] + query) * args.chosen_stride;
    for (int64_t i = 0; i < least(position + 1, args.chosen_stride); ++i)
      if (chosen[i] < 0 || chosen[i] > position) return false;
  }
  return true;
}

// KV heads of a direct item: all where sequences, and parts of them, are enough for the threads, fewer where they are not.
// Parts are the better cut: a block's keys of several heads are one long run of addresses.
int64_t heads_per_item(const kvplan_attention& args, int64_t rows_per_head, int threads) {
  const int64_t in_cache = most(1, kDirectItemFloats / (rows_per_head * most(args.head_size, args.value_size)));
  if (threads <= 1) return least(in_cache, args.num_kv_heads);
  int64_t parts = 0;
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const Span span = visible_span(args, s, 0, query_length(args, s));
    parts += most(1, (span.end - span.begin) / kMinPartTokens);
  }
  const int64_t cuts = divided_up(kItemsPerThread * threads, most(1, parts));
  return least(in_cache, divided_up(args.num_kv_heads, cuts));
}

int64_t packed_item_rows(const kvplan_attention& args) {
  return args.head_size >= 128 && suits_tiles(args) ? kTiledItemRows : kPackedItemRows;
}

void forget(SharedPrefixes& shared) {
  shared.groups.clear();
  std::fill(shared.group_of.begin(), shared.group_of.end(), -1);
}

}  // namespace

int check_attention(const kvplan_attention& args) {
  if (args.query_starts[0] < 0 || args.query_starts[args.num_sequences] > args.num_tokens) return KVPLAN_BAD_INDEX;
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const int64_t query_len = query_length(args, s);
    if (query_len < 0 || query_len > args.seq_lens[s]) return KVPLAN_BAD_INDEX;
    if (query_len > 0 && !blocks_in_pool(args, s)) return KVPLAN_BAD_INDEX;
    if (args.chosen != nullptr && !chooses_seen_tokens(args, s)) return KVPLAN_BAD_INDEX;
  }
  return KVPLAN_OK;
}

Plan plan_attention(const kvplan_attention& args, SharedPrefixes& shared, int threads) {
  const int64_t group = args.num_heads / args.num_kv_heads;
  Plan plan{};
  plan.direct_queries = static_cast<int32_t>(reads_wide_keys(args) ? 1 : kMostDirectRows / group);
  if (group > kMostDirectRows || args.chosen != nullptr) forget(shared);  // one sequence's rows serve themselves well
  plan.direct_heads = static_cast<int32_t>(heads_per_item(args, most(1, plan.direct_queries) * group, threads));
  const int64_t packed_rows = packed_item_rows(args);
  plan.packed_queries = static_cast<int32_t>(most(1, packed_rows / group));
  plan.shared_members = static_cast<int32_t>(most(2, packed_rows / group));
  plan.max_rows = static_cast<int32_t>(
      most(plan.packed_queries * group, plan.direct_heads * most(1, plan.direct_queries) * group));
  if (!shared.groups.empty())
    plan.max_rows = static_cast<int32_t>(most(plan.max_rows, plan.shared_members * group));
  plan.max_shared_rows = static_cast<int32_t>(plan.direct_heads * group);
  int64_t pieces = 0, shared_items = 0, pieces_behind = 0, prefix_parts = 0;
  double cost = 0.0;
  for_each_piece(args, shared, plan, [&](const Piece& piece) {
    ++pieces;
    pieces_behind += piece.group != nullptr;
    cost += piece_cost(args, piece);
  });
  for_each_shared_piece(args, shared, plan, [&](const PrefixGroup& prefix, int64_t, int64_t, int64_t members) {
    cost += cost_of(1, members * group, prefix.tokens);
  });
  // A piece that costs c is cut into at most c / target parts, hence these bounds.
  const int64_t wanted = kItemsPerThread * threads;
  plan.cost_target = threads > 1 ? cost / static_cast<double>(wanted) : 0.0;
  cut_prefixes(args, shared, plan);
  for_each_piece(args, shared, plan, [&](const Piece& piece) {
    if (piece.group != nullptr) prefix_parts += piece.group->num_parts;
  });
  for_each_shared_piece(args, shared, plan, [&](const PrefixGroup& prefix, int64_t, int64_t, int64_t) {
    shared_items += prefix.num_parts;
  });
  plan.max_items = pieces + wanted + shared_items;
  plan.max_parts = threads > 1 ? wanted + 1 : 0;
  plan.max_shared_parts = pieces_behind > 0 ? prefix_parts + pieces_behind + wanted : 0;
  return plan;
}

int64_t fill_items(const kvplan_attention& args, const SharedPrefixes& shared, const Plan& plan, Item* items,
                   int32_t* owners) {
  int64_t num_items = 0;
  for_each_shared_piece(args, shared, plan, [&](const PrefixGroup& group, int64_t head, int64_t first, int64_t members) {
    for (int64_t part = 0; part < group.num_parts; ++part) {
      Item& item = items[num_items++];
      item = Item{};
      item.sequence = shared.members[static_cast<size_t>(first)];
      item.first_head = static_cast<int32_t>(head);
      item.num_heads = item.num_queries = 1;
      item.kv_begin = static_cast<int32_t>(group.tokens * part / group.num_parts);
      item.kv_end = static_cast<int32_t>(group.tokens * (part + 1) / group.num_parts);
      item.part = static_cast<int32_t>(part);
      item.first_member = static_cast<int32_t>(first);
      item.num_members = static_cast<int32_t>(members);
    }
  });
  int64_t next_part = 0, next_shared_part = plan.max_parts;
  for_each_piece(args, shared, plan, [&](const Piece& piece) {
    const int64_t length = piece.span.end - piece.span.begin;
    const int64_t before = piece.group == nullptr ? 0 : piece.group->num_parts;
    const int64_t own = parts_of(plan, piece, piece_cost(args, piece));
    int64_t& first_part = before > 0 ? next_shared_part : next_part;
    for (int64_t part = 0; part < own; ++part) {
      Item& item = items[num_items++];
      item = Item{};
      item.sequence = static_cast<int32_t>(piece.sequence);
      item.first_head = static_cast<int32_t>(piece.first_head);
      item.num_heads = static_cast<int32_t>(piece.num_heads);
      item.first_query = static_cast<int32_t>(piece.first_query);
      item.num_queries = static_cast<int32_t>(piece.num_queries);
      item.kv_begin = static_cast<int32_t>(piece.span.begin + length * part / own);
      item.kv_end = static_cast<int32_t>(piece.span.begin + length * (part + 1) / own);
      item.part = static_cast<int32_t>(first_part + before + part);
      item.first_part = static_cast<int32_t>(first_part);
      item.num_parts = static_cast<int32_t>(before + own);
      item.direct = piece.direct;
    }
    if (before > 0)
      owners[piece.sequence * pieces_per_sequence(args, plan) + piece.first_head / plan.direct_heads] =
          static_cast<int32_t>(num_items - 1);
    if (before + own > 1) first_part += before + own;
  });
  return num_items;
}

}  // namespace kvplan
