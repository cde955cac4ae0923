// Sparse attention's choice (DeepSeek V3.2): which tokens of its sequence each query token attends to.
//
// A token's score is the sum over the index's heads of weight * max(0, query . key). A thread takes one query token after
// the other: the scores of its whole context, the top_k-th largest of them by partition, then the positions in order.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "attention_plan.h"
#include "../parallel.h"
#include "../tile.h"

namespace kvplan {
namespace {

// One thread's memory, which grows to the longest context.
struct Room {
  std::vector<float> query;   // [heads, padded head_size]
  std::vector<float> weights; // [heads]
  std::vector<float> tile;    // [heads, kTileTokens]
  std::vector<float> scores;  // [context]
  std::vector<float> sorted;  // the same, as the partition leaves it
};

template <class T>
void load_token(const kvplan_choice& args, int64_t token, Room& room) {
  const int64_t padded = padded_to_lanes(args.head_size);
  room.query.assign(static_cast<size_t>(args.num_heads * padded), 0.0f);
  room.weights.resize(static_cast<size_t>(args.num_heads));
  room.tile.resize(static_cast<size_t>(args.num_heads * kTileTokens));
  const T* query = static_cast<const T*>(args.query) + token * args.query_row_stride;
  const T* weights = static_cast<const T*>(args.weights) + token * args.weight_row_stride;
  for (int64_t head = 0; head < args.num_heads; ++head) {
    for (int64_t i = 0; i < args.head_size; ++i)
      room.query[static_cast<size_t>(head * padded + i)] = to_float(query[head * args.head_size + i]);
    room.weights[static_cast<size_t>(head)] = to_float(weights[head]);
  }
}

template <class T, int kRows>
void score_heads(const kvplan_choice& args, const T* const* keys, int64_t first, Room& room) {
  const int64_t padded = padded_to_lanes(args.head_size);
  int64_t head = first;
  for (; head + kRows <= args.num_heads; head += kRows)
    score_four_tokens<T, kRows>(room.query.data() + head * padded, padded, keys, 0, static_cast<int>(args.head_size),
                                room.tile.data() + head * kTileTokens, kTileTokens);
  if constexpr (kRows > 1) {
    if (head < args.num_heads) score_heads<T, kRows - 1>(args, keys, head, room);
  }
}

// Scores of the sequence's first `context` tokens.
template <class T>
void score_context(const kvplan_choice& args, int64_t sequence, int64_t context, Room& room) {
  const int32_t* table = args.block_tables + sequence * args.block_table_stride;
  room.scores.resize(static_cast<size_t>(context));
  for (int64_t first = 0; first < context; first += 4) {
    const T* keys[4];
    for (int64_t t = 0; t < 4; ++t) {
      const int64_t position = std::min(first + t, context - 1);
      keys[t] = static_cast<const T*>(args.keys) + table[position / args.block_size] * args.block_stride +
                position % args.block_size * args.head_size;
    }
    score_heads<T, kDirectRows>(args, keys, 0, room);
    for (int64_t t = 0; t < 4 && first + t < context; ++t) {
      float sum = 0.0f;
      for (int64_t head = 0; head < args.num_heads; ++head)
        sum += room.weights[static_cast<size_t>(head)] *
               std::max(0.0f, room.tile[static_cast<size_t>(head * kTileTokens + t)]);
      room.scores[static_cast<size_t>(first + t)] = std::isnan(sum) ? -INFINITY : sum;
    }
  }
}

// The positions of the top_k largest scores in ascending order; of equal ones the earlier.
void take_largest(int64_t top_k, Room& room, int32_t* chosen) {
  room.sorted = room.scores;
  const auto last = room.sorted.begin() + (top_k - 1);
  std::nth_element(room.sorted.begin(), last, room.sorted.end(), std::greater<float>());
  const float threshold = *last;
  int64_t equal = top_k - std::count_if(room.scores.begin(), room.scores.end(), [&](float x) { return x > threshold; });
  for (size_t position = 0; position < room.scores.size(); ++position) {
    const float score = room.scores[position];
    if (score > threshold || (score == threshold && equal-- > 0)) *chosen++ = static_cast<int32_t>(position);
  }
}

void choose(const kvplan_choice& args, int64_t sequence, int64_t token, int64_t context) {
  static thread_local Room room;
  int32_t* chosen = args.chosen + token * args.top_k;
  if (context <= args.top_k) {
    for (int64_t position = 0; position < context; ++position) chosen[position] = static_cast<int32_t>(position);
    return;
  }
  if (args.storage == KVPLAN_BFLOAT16) {
    load_token<BFloat16>(args, token, room);
  } else {
    load_token<float>(args, token, room);
  }
  if (args.kv_storage == KVPLAN_BFLOAT16) {
    score_context<BFloat16>(args, sequence, context, room);
  } else if (args.kv_storage == KVPLAN_FLOAT8_E4M3) {
    score_context<Float8E4M3>(args, sequence, context, room);
  } else {
    score_context<float>(args, sequence, context, room);
  }
  take_largest(args.top_k, room, chosen);
}

int check_choice(const kvplan_choice& args) {
  if (args.query_starts[0] < 0 || args.query_starts[args.num_sequences] > args.num_tokens) return KVPLAN_BAD_INDEX;
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const int64_t new_tokens = args.query_starts[s + 1] - args.query_starts[s];
    if (new_tokens < 0 || new_tokens > args.seq_lens[s]) return KVPLAN_BAD_INDEX;
    const int64_t blocks = (args.seq_lens[s] + args.block_size - 1) / args.block_size;
    if (new_tokens > 0 && blocks > args.block_table_width) return KVPLAN_BAD_INDEX;
    for (int64_t i = 0; i < blocks && new_tokens > 0; ++i) {
      const int32_t block = args.block_tables[s * args.block_table_stride + i];
      if (block < 0 || block >= args.num_blocks) return KVPLAN_BAD_INDEX;
    }
  }
  return KVPLAN_OK;
}

}  // namespace
}  // namespace kvplan

int kvplan_choose_tokens(const kvplan_choice* args, int threads) {
  using namespace kvplan;
  const int status = check_choice(*args);
  if (status != KVPLAN_OK) return status;
  const int32_t* starts = args->query_starts;
  for_each_item(starts[args->num_sequences] - starts[0], threads > 0 ? threads : 1, [&](int, int64_t item) {
    const int64_t token = starts[0] + item;
    const int64_t sequence = std::upper_bound(starts, starts + args->num_sequences + 1, token) - starts - 1;
    choose(*args, sequence, token, args->seq_lens[sequence] - (starts[sequence + 1] - token) + 1);
  });
  return KVPLAN_OK;
}
