// Paged attention against its definition: prompts and decoding mixed, every cache type, shared prefixes.
#pragma once

#include <numeric>

#include "cross_check.h"

constexpr float kScale = 0.2f;

struct Sequence {
  int64_t new_tokens, tokens, shared_tokens;  // the first shared_tokens lie in blocks that all such sequences share
};

struct Attention {
  const char* name;
  int64_t heads, kv_heads, head_size, block_size, window;
  float softcap;
  int storage, kv_storage;
  std::vector<Sequence> sequences;
  std::vector<float> slopes{};  // of each head; none where empty
};

// One step over a pool of two layers. What no token may see is NaN, and blocks before the window have no number.
struct Step {
  const Attention& a;
  std::vector<int32_t> tables, lengths, starts{0};
  int64_t width = 0, num_blocks = 1, shared_from = -1, layer_size, rows;
  Tensor pool, query, out;
  std::vector<float> scales;           // of int8, in blocks as far apart as the pool's; NaN where the pool is
  std::vector<double> cache, queries;  // the values of pool and query

  explicit Step(const Attention& attention)
      : a(attention), layer_size(2 * a.kv_heads * a.block_size * a.head_size), rows(number_blocks()),
        pool(a.kv_storage, num_blocks * 2 * layer_size, NAN), query(a.storage, 0),
        out(a.storage, row_size() * rows, 7), scales(static_cast<size_t>(num_blocks * layer_size / 2), NAN) {
    Random random{3};
    query = Tensor(a.storage, row_size() * rows, random, 3);
    for (size_t s = 0; s < a.sequences.size(); ++s)
      for (int64_t position = 0; position < lengths[s]; ++position)
        for (int64_t i = 0; i < 2 * a.kv_heads * a.head_size && table(s, position) >= 0; ++i) {
          const int64_t row = cell(s, position, i / a.head_size % a.kv_heads, i >= a.kv_heads * a.head_size);
          pool.put(row + i % a.head_size, a.kv_storage == KVPLAN_INT8 ? 127 * random() : random());
          if (i % a.head_size == 0) scale_of(row) = static_cast<float>(0.002 + 0.006 * std::fabs(random()));
        }
    cache = pool.values();
    for (size_t i = 0; i < cache.size() && a.kv_storage == KVPLAN_INT8; ++i)
      if (static_cast<int64_t>(i) % (2 * layer_size) >= layer_size) cache[i] *= scale_of(static_cast<int64_t>(i));
    queries = query.values();
  }
  int64_t row_size() const { return a.heads * a.head_size + 4; }
  int64_t number_blocks() {
    for (const Sequence& s : a.sequences) width = std::max(width, (s.tokens + a.block_size - 1) / a.block_size);
    for (const Sequence& s : a.sequences) {
      const int64_t first_seen = a.window > 0 ? std::max<int64_t>(0, s.tokens - s.new_tokens + 1 - a.window) : 0;
      for (int64_t block = 0; block < width; ++block) {
        const bool wanted = block * a.block_size < s.tokens && (block + 1) * a.block_size > first_seen;
        const bool shared = block * a.block_size < s.shared_tokens && shared_from >= 0;
        const size_t other = static_cast<size_t>(shared_from * width + block);
        tables.push_back(!wanted ? -1 : shared ? tables[other] : static_cast<int32_t>(num_blocks++));
      }
      if (s.shared_tokens > 0 && shared_from < 0) shared_from = static_cast<int64_t>(lengths.size());
      lengths.push_back(static_cast<int32_t>(s.tokens));
      starts.push_back(starts.back() + static_cast<int32_t>(s.new_tokens));
    }
    return starts.back();
  }
  int64_t table(size_t s, int64_t position) const {
    return tables[s * static_cast<size_t>(width) + static_cast<size_t>(position / a.block_size)];
  }
  int64_t cell(size_t s, int64_t position, int64_t head, bool value) const {
    const int64_t row = ((value ? a.kv_heads : 0) + head) * a.block_size + position % a.block_size;
    return (table(s, position) * 2 + 1) * layer_size + row * a.head_size;
  }
  // The scale of an element of the second layer: in its block, keys before values as the rows of a layer are.
  float& scale_of(int64_t element) {
    const int64_t row = (element % (2 * layer_size) - layer_size) / a.head_size;
    return scales[static_cast<size_t>(element / (2 * layer_size) * (layer_size / 2) + row)];
  }
  kvplan_attention call() {
    return {query.data(), out.data(), row_size(), a.head_size, row_size(), a.head_size, pool.from(layer_size),
            pool.from(layer_size + layer_size / 2), 2 * layer_size, num_blocks, tables.data(), width, width,
            nullptr, lengths.data(), starts.data(), static_cast<int64_t>(lengths.size()), rows, a.heads, a.kv_heads,
            a.head_size, a.block_size, a.window, kScale, a.softcap, nullptr, a.storage, a.kv_storage,
            a.slopes.empty() ? nullptr : a.slopes.data(), a.head_size, a.head_size, nullptr, 0, scales.data(),
            scales.data() + a.kv_heads * a.block_size};
  }
};

// out for one row and head: softmax of the scores times the values.
inline std::vector<double> attended(const Step& step, size_t s, int64_t row, int64_t head) {
  const Attention& a = step.a;
  const int64_t last = step.lengths[s] - step.starts[s + 1] + row, kv_head = head / (a.heads / a.kv_heads);
  std::vector<double> total(static_cast<size_t>(a.head_size));
  double sum = 0;
  const int64_t first = a.window > 0 ? std::max<int64_t>(0, last + 1 - a.window) : 0;
  const double* query = step.queries.data() + row * step.row_size() + head * a.head_size;
  for (int64_t position = first; position <= last; ++position) {
    const double* key = step.cache.data() + step.cell(s, position, kv_head, false);
    const double* value = step.cache.data() + step.cell(s, position, kv_head, true);
    const double score = std::inner_product(query, query + a.head_size, key, 0.0) * static_cast<double>(kScale);
    const double slope = a.slopes.empty() ? 0.0 : static_cast<double>(a.slopes[static_cast<size_t>(head)]);
    const double capped = a.softcap > 0 ? a.softcap * std::tanh(score / a.softcap) : score;
    const double weight = std::exp(capped + slope * static_cast<double>(position));
    sum += weight;
    for (int64_t i = 0; i < a.head_size; ++i) total[static_cast<size_t>(i)] += weight * value[i];
  }
  for (double& value : total) value /= sum;
  return total;
}

inline void check_attention(const Attention& a) {
  Worst worst(std::string(a.name) + ", " + kStorageNames[a.storage] + " over " + kStorageNames[a.kv_storage]);
  Step step(a);
  const kvplan_attention call = step.call();
  int64_t sharing = 0, common = INT64_MAX;
  for (const Sequence& s : a.sequences) {
    if (s.shared_tokens == 0) continue;
    ++sharing;
    common = std::min({common, s.shared_tokens, (s.tokens - 1) / a.block_size * a.block_size});
  }
  worst.expect(kvplan_tokens_read_once(&call) == (sharing > 0 ? (sharing - 1) * common : 0));
  worst.expect(kvplan_paged_attention(&call, threads) == KVPLAN_OK);
  for (size_t s = 0; s < a.sequences.size(); ++s)
    for (int64_t row = step.starts[s]; row < step.starts[s + 1]; ++row) {
      for (int64_t head = 0; head < a.heads; ++head) {
        const std::vector<double> want = attended(step, s, row, head);
        for (int64_t i = 0; i < a.head_size; ++i)
          worst.see(step.out.at(row * step.row_size() + head * a.head_size + i), want[static_cast<size_t>(i)],
                    a.storage, 1e-5);
      }
      for (int64_t gap = 1; gap <= 4; ++gap) worst.expect(step.out.at((row + 1) * step.row_size() - gap) == 7);
    }
}

// A prompt, eight sequences behind 192 shared tokens, and one of its own.
inline std::vector<Sequence> sharing_sequences() {
  std::vector<Sequence> sequences{{20, 41, 0}};
  for (int64_t i = 0; i < 8; ++i) sequences.push_back({1, 192 + 1 + 23 * i, 192});
  sequences.push_back({1, 140, 0});
  return sequences;
}

// What AMX's tiles compute where a processor has them: heads of their sizes in blocks of whole tiles, few and many rows.
inline void check_attentions_in_tiles() {
  constexpr int kBf16 = KVPLAN_BFLOAT16;
  const std::vector<Sequence> mixed{{1, 1, 0}, {33, 33, 0}, {1, 77, 0}, {9, 150, 0}, {0, 0, 0}, {1, 260, 0},
                                    {3, 70, 0}, {70, 103, 0}};
  const std::vector<Sequence> shared = sharing_sequences();
  const Attention cases[] = {
      {"tiles, group of 1", 3, 3, 64, 16, 0, 0, kBf16, kBf16, mixed},
      {"tiles, group of 5, two heads in a tile", 15, 3, 64, 16, 0, 0, kBf16, kBf16, mixed},
      {"tiles, group of 7, window", 14, 2, 64, 32, 40, 0, kBf16, kBf16, mixed},
      {"tiles, group of 8, softcap", 16, 2, 128, 16, 0, 2, kBf16, kBf16, mixed},
      {"tiles, group of 20", 20, 1, 128, 48, 0, 0, kBf16, kBf16, mixed},
      {"tiles, heads of 256, window, softcap", 6, 1, 256, 16, 100, 2, kBf16, kBf16, mixed},
      {"tiles, slopes", 6, 1, 64, 16, 0, 0, kBf16, kBf16, mixed, {0.5f, 0.25f, 0.125f, -0.0625f, 0.0f, 0.03125f}},
      {"tiles, slopes, softcap", 2, 2, 64, 16, 0, 2, kBf16, kBf16, mixed, {0.5f, -0.0625f}},
      {"tiles, shared prefix", 2, 2, 64, 16, 0, 0, kBf16, kBf16, shared},
      {"tiles, shared prefix, group of 8", 8, 1, 128, 16, 0, 0, kBf16, kBf16, shared},
      {"tiles, shared prefix, slopes", 4, 2, 64, 16, 0, 0, kBf16, kBf16, shared, {0.5f, 0.25f, 0.125f, -0.0625f}},
  };
  for (const Attention& a : cases) check_attention(a);
}

inline void check_attentions() {
  constexpr int kF32 = KVPLAN_FLOAT32, kBf16 = KVPLAN_BFLOAT16, kFp8 = KVPLAN_FLOAT8_E4M3,
                kInt8 = KVPLAN_INT8;
  const std::vector<Sequence> mixed{{1, 1, 0}, {33, 33, 0}, {1, 77, 0}, {9, 150, 0}, {0, 0, 0}, {1, 260, 0},
                                    {3, 70, 0}};
  const std::vector<Sequence> shared = sharing_sequences();
  std::vector<Sequence> same_table{{1, 240, 240}};  // of different lengths, one newest token in its block's first place
  for (int64_t i = 0; i < 7; ++i) same_table.push_back({1, 177 + 9 * i, 240});
  const Attention cases[] = {
      {"attention, blocks of 16", 2, 2, 64, 16, 0, 0, kF32, kF32, mixed},
      {"attention, group of 3, blocks of 1", 6, 2, 80, 1, 0, 0, kF32, kF32, mixed},
      {"attention, group of 8, blocks of 48", 8, 1, 80, 48, 0, 0, kBf16, kBf16, mixed},
      {"attention, group of 3, window", 3, 1, 64, 16, 40, 0, kBf16, kFp8, mixed},
      {"attention, group of 8, softcap", 8, 1, 64, 16, 0, 2, kF32, kBf16, mixed},
      {"attention, blocks of 48, window, softcap", 2, 2, 80, 48, 100, 2, kF32, kFp8, mixed},
      {"attention, group of 3, heads of 42", 3, 1, 42, 16, 0, 0, kF32, kFp8, mixed},
      {"attention, group of 3, heads of 42", 3, 1, 42, 16, 0, 0, kF32, kInt8, mixed},
      {"attention, blocks of 48, window, softcap", 2, 2, 80, 48, 100, 2, kBf16, kInt8, mixed},
      {"attention, slopes", 4, 2, 64, 16, 0, 0, kF32, kF32, mixed, {0.5f, 0.25f, 0.125f, -0.0625f}},
      {"shared prefix, blocks of 16", 2, 2, 64, 16, 0, 0, kF32, kF32, shared},
      {"shared prefix, slopes", 4, 2, 64, 16, 0, 0, kF32, kBf16, shared, {0.5f, 0.25f, 0.125f, -0.0625f}},
      {"shared prefix, group of 3, blocks of 48", 6, 2, 80, 48, 0, 0, kBf16, kBf16, shared},
      {"shared prefix, group of 8, blocks of 1", 8, 1, 64, 1, 0, 2, kF32, kFp8, shared},
      {"shared prefix, group of 3, blocks of 16", 6, 2, 64, 16, 0, 0, kF32, kInt8, shared},
      {"shared prefix, up to the newest block, heads of 42", 3, 3, 42, 16, 0, 0, kF32, kBf16, same_table},
  };
  for (const Attention& a : cases) check_attention(a);
  check_attentions_in_tiles();
}
