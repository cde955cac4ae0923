#include "shared_prefix.h"

#include <algorithm>

namespace kvplan {
namespace {

// A prefix shorter than this is not worth the merge, as for a part of one sequence (attention_plan.cpp).
constexpr int64_t kMinSharedTokens = 128;
// Packing a tile of the cache costs about as much as a few query rows of arithmetic on it.
constexpr int64_t kMinSharedRows = 6;

const int32_t* table_of(const kvplan_attention& args, int32_t sequence) {
  return args.block_tables + sequence * args.block_table_stride;
}

// Whole blocks before the sequence's newest token.
int64_t blocks_before_newest(const kvplan_attention& args, int32_t sequence) {
  return (args.seq_lens[sequence] - 1) / args.block_size;
}

// How many blocks all members have in common from the start.
int64_t common_blocks(const kvplan_attention& args, const int32_t* members, int64_t num_members) {
  const int32_t* first = table_of(args, members[0]);
  int64_t common = blocks_before_newest(args, members[0]);
  for (int64_t i = 1; i < num_members; ++i) {
    const int32_t* table = table_of(args, members[i]);
    common = std::min(common, blocks_before_newest(args, members[i]));
    common = std::mismatch(first, first + common, table).first - first;
  }
  return common;
}

}  // namespace

void find_shared_prefixes(const kvplan_attention& args, SharedPrefixes& shared) {
  shared.groups.clear();
  shared.members.clear();
  shared.group_of.assign(static_cast<size_t>(args.num_sequences), -1);
  if (args.window > 0) return;  // the members' windows begin at different tokens
  std::vector<int32_t>& members = shared.members;
  for (int32_t s = 0; s < args.num_sequences; ++s)
    if (args.query_starts[s + 1] - args.query_starts[s] == 1 && args.seq_lens[s] > kMinSharedTokens)
      members.push_back(s);
  std::sort(members.begin(), members.end(), [&](int32_t a, int32_t b) {
    const int32_t block_of_a = table_of(args, a)[0], block_of_b = table_of(args, b)[0];
    return block_of_a != block_of_b ? block_of_a < block_of_b : a < b;
  });
  const int64_t heads_per_kv_head = args.num_heads / args.num_kv_heads;
  const int32_t count = static_cast<int32_t>(members.size());
  for (int32_t begin = 0, end = 0; begin < count; begin = end) {
    const int32_t block = table_of(args, members[static_cast<size_t>(begin)])[0];
    while (end < count && table_of(args, members[static_cast<size_t>(end)])[0] == block) ++end;
    if (end - begin < 2 || (end - begin) * heads_per_kv_head < kMinSharedRows) continue;
    const int64_t tokens = common_blocks(args, members.data() + begin, end - begin) * args.block_size;
    if (tokens < kMinSharedTokens) continue;
    for (int32_t i = begin; i < end; ++i)
      shared.group_of[static_cast<size_t>(members[static_cast<size_t>(i)])] = static_cast<int32_t>(shared.groups.size());
    shared.groups.push_back({begin, end - begin, static_cast<int32_t>(tokens), 1});
  }
}

}  // namespace kvplan
