#include "attention_plan.h"

namespace kvplan {
namespace {

// Query rows (tokens x heads of the group) that one pass over the cache serves.
constexpr int64_t kRowsPerItem = 48;
// What loading a cache row costs, in query rows of arithmetic on it.
constexpr int64_t kLoadRows = 6;
// Items per thread that splitting aims at: the last item to finish then costs a thread at most an eighth of its time.
constexpr int64_t kItemsPerThread = 8;
// A part shorter than this is not worth its merge.
constexpr int64_t kMinPartTokens = 128;

int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

int64_t most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

struct Span {
  int64_t begin, end;
};

// Cache positions that query tokens [first, first + count) of a sequence see between them.
Span visible_span(const kvplan_attention& args, int64_t sequence, int64_t first, int64_t count) {
  const int64_t query_len = args.query_starts[sequence + 1] - args.query_starts[sequence];
  const int64_t position = args.seq_lens[sequence] - query_len + first;
  return {args.window > 0 ? most(0, position + 1 - args.window) : 0, position + count};
}

double item_cost(const kvplan_attention& args, int64_t count, const Span& span) {
  const int64_t rows = count * (args.num_heads / args.num_kv_heads);
  return static_cast<double>((rows + kLoadRows) * (span.end - span.begin));
}

// visit(sequence, first query, count, span) for every tile of every sequence's queries.
template <class Visit>
void for_each_tile(const kvplan_attention& args, int64_t queries_per_item, const Visit& visit) {
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const int64_t query_len = args.query_starts[s + 1] - args.query_starts[s];
    for (int64_t first = 0; first < query_len; first += queries_per_item) {
      const int64_t count = least(queries_per_item, query_len - first);
      visit(s, first, count, visible_span(args, s, first, count));
    }
  }
}

bool blocks_in_pool(const kvplan_attention& args, int64_t sequence) {
  const int64_t query_len = args.query_starts[sequence + 1] - args.query_starts[sequence];
  const Span span = visible_span(args, sequence, 0, query_len);
  const int64_t end = (span.end + args.block_size - 1) / args.block_size;
  if (end > args.block_table_width) return false;
  const int32_t* table = args.block_tables + sequence * args.block_table_stride;
  for (int64_t i = span.begin / args.block_size; i < end; ++i)
    if (table[i] < 0 || table[i] >= args.num_blocks) return false;
  return true;
}

}  // namespace

int check_attention(const kvplan_attention& args) {
  if (args.query_starts[0] < 0 || args.query_starts[args.num_sequences] > args.num_tokens) return KVPLAN_BAD_INDEX;
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const int64_t query_len = args.query_starts[s + 1] - args.query_starts[s];
    if (query_len < 0 || query_len > args.seq_lens[s]) return KVPLAN_BAD_INDEX;
    if (query_len > 0 && !blocks_in_pool(args, s)) return KVPLAN_BAD_INDEX;
  }
  return KVPLAN_OK;
}

Plan plan_attention(const kvplan_attention& args, int threads) {
  Plan plan{};
  const int64_t group = args.num_heads / args.num_kv_heads;
  plan.queries_per_item = most(1, kRowsPerItem / group);
  int64_t tiles = 0;
  double cost = 0.0;
  for_each_tile(args, plan.queries_per_item, [&](int64_t, int64_t, int64_t count, const Span& span) {
    ++tiles;
    cost += item_cost(args, count, span);
  });
  // An item that costs c is cut into at most ceil(c / target) parts, hence these bounds.
  const int64_t pieces = kItemsPerThread * threads;
  plan.cost_target = threads > 1 ? cost * static_cast<double>(args.num_kv_heads) / static_cast<double>(pieces) : 0.0;
  plan.max_items = tiles * args.num_kv_heads + pieces + 1;
  plan.max_parts = threads > 1 ? 2 * pieces + 2 : 0;
  return plan;
}

int64_t fill_items(const kvplan_attention& args, const Plan& plan, Item* items) {
  int64_t num_items = 0;
  int64_t next_part = 0;
  for_each_tile(args, plan.queries_per_item, [&](int64_t s, int64_t first, int64_t count, const Span& span) {
    const int64_t length = span.end - span.begin;
    const double cost = item_cost(args, count, span);
    int64_t parts = 1;
    if (plan.cost_target > 0.0 && cost > plan.cost_target)
      parts = most(1, least(static_cast<int64_t>(cost / plan.cost_target), length / kMinPartTokens));
    for (int64_t head = 0; head < args.num_kv_heads; ++head) {
      const int64_t first_part = next_part;
      for (int64_t part = 0; part < parts; ++part) {
        Item& item = items[num_items++];
        item.sequence = static_cast<int32_t>(s);
        item.kv_head = static_cast<int32_t>(head);
        item.first_query = static_cast<int32_t>(first);
        item.num_queries = static_cast<int32_t>(count);
        item.kv_begin = static_cast<int32_t>(span.begin + length * part / parts);
        item.kv_end = static_cast<int32_t>(span.begin + length * (part + 1) / parts);
        item.part = static_cast<int32_t>(first_part + part);
        item.first_part = static_cast<int32_t>(first_part);
        item.num_parts = static_cast<int32_t>(parts);
      }
      if (parts > 1) next_part += parts;
    }
  });
  return num_items;
}

}  // namespace kvplan
