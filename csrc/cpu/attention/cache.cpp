// Writing into the paged pool, and moving its blocks.
#include "../../include/kvplan_cpu.h"
#include "../parallel.h"
#include "../simd.h"

namespace kvplan {
namespace {

template <class From, class To>
KVPLAN_INLINE void copy_row(const From* from, To* to, int64_t width) {
  int64_t column = 0;
  for (; column + kLanes <= width; column += kLanes) store(to + column, load(from + column));
  const int rest = static_cast<int>(width - column);
  if (rest > 0) store_part(to + column, load_part(from + column, rest), rest);
}

KVPLAN_INLINE void copy_row(const float* from, float* to, int64_t width) {
  std::memcpy(to, from, sizeof(float) * static_cast<size_t>(width));
}

KVPLAN_INLINE void copy_row(const BFloat16* from, BFloat16* to, int64_t width) {
  std::memcpy(to, from, sizeof(BFloat16) * static_cast<size_t>(width));
}

// The scale of `width` values: their largest magnitude / 127; a NaN where one of them is not finite.
template <class From>
KVPLAN_INLINE float scale_of(const From* from, int64_t width) {
  Floats largest{}, poison{};
  int64_t column = 0;
  const auto take = [&](Floats value) {
    largest = maximum(from_bits(bits_of(value) & 0x7fffffff), largest);
    poison += value * 0.0f;  // a NaN from an infinity on
  };
  for (; column + kLanes <= width; column += kLanes) take(load(from + column));
  const int rest = static_cast<int>(width - column);
  if (rest > 0) take(load_part(from + column, rest));
  return maximum_of(largest) / 127.0f + sum_of(poison);
}

// Integers of `width` values.
template <class From>
KVPLAN_INLINE void quantise_row(const From* from, Int8* to, int64_t width, float scale) {
  if (!(scale > 0.0f)) {
    std::memset(to, 0, static_cast<size_t>(width));
    return;
  }
  const auto code = [&](Floats value) {
    const Floats steps = value / splat(scale);  // a scale with few bits left may make more than 127 of them
    return maximum(splat(-127.0f), -maximum(splat(-127.0f), -steps));
  };
  int64_t column = 0;
  for (; column + kLanes <= width; column += kLanes) store(to + column, code(load(from + column)));
  const int rest = static_cast<int>(width - column);
  if (rest > 0) store_part(to + column, code(load_part(from + column, rest)), rest);
}

// Elements from the first block's page to the slot's row, of `size` elements.
int64_t place_of(const kvplan_kv_write& args, int64_t slot, int64_t size) {
  return slot / args.block_size * args.block_stride + slot % args.block_size * size;
}

// Asks for the lines to which one token's keys or values of all heads go. They lie a block apart, mostly in no cache, and a
// store waits for its line.
template <class To>
KVPLAN_INLINE void ask_for_heads(const kvplan_kv_write& args, const To* to, int64_t size) {
  for (int64_t head = 0; head < args.num_kv_heads; ++head) {
    const char* line = reinterpret_cast<const char*>(to + head * args.block_size * size);
    for (int64_t at = 0; at < size * int64_t{sizeof(To)}; at += 64) __builtin_prefetch(line + at, 1, 3);
  }
}

template <class To>
KVPLAN_INLINE void ask_for_token(const kvplan_kv_write& args, int64_t token) {
  const int64_t slot = args.slots[token];
  if (slot < 0) return;
  ask_for_heads(args, static_cast<const To*>(args.keys) + place_of(args, slot, args.head_size), args.head_size);
  if (args.value == nullptr) return;
  const int64_t value_slot = args.value_slots == nullptr ? slot : args.value_slots[token];
  ask_for_heads(args, static_cast<const To*>(args.values) + place_of(args, value_slot, args.value_size),
                args.value_size);
}

// One token's keys or values, of all heads, at `to`.
template <class From, class To>
KVPLAN_INLINE void write_heads(const kvplan_kv_write& args, const From* from, int64_t head_stride, To* to,
                               int64_t size) {
  for (int64_t head = 0; head < args.num_kv_heads; ++head)
    copy_row(from + head * head_stride, to + head * args.block_size * size, size);
}

// The same in integers, with a scale for each head, `block_size` apart from `scales` on.
template <class From>
KVPLAN_INLINE void write_heads(const kvplan_kv_write& args, const From* from, int64_t head_stride, Int8* to,
                               int64_t size, float* scales) {
  for (int64_t head = 0; head < args.num_kv_heads; ++head) {
    float& scale = scales[head * args.block_size];
    scale = scale_of(from + head * head_stride, size);
    quantise_row(from + head * head_stride, to + head * args.block_size * size, size, scale);
  }
}

// Where the scale of the slot's first head lies.
float* scale_at(const kvplan_kv_write& args, float* scales, int64_t slot) {
  return scales + slot / args.block_size * (args.block_stride / int64_t{sizeof(float)}) + slot % args.block_size;
}

template <class From>
void write_integers(const kvplan_kv_write& args, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    const int64_t slot = args.slots[token];
    if (slot < 0) continue;
    const int64_t value_slot = args.value_slots == nullptr ? slot : args.value_slots[token];
    write_heads(args, static_cast<const From*>(args.key) + token * args.key_row_stride, args.key_head_stride,
                static_cast<Int8*>(args.keys) + place_of(args, slot, args.head_size), args.head_size,
                scale_at(args, args.key_scales, slot));
    write_heads(args, static_cast<const From*>(args.value) + token * args.value_row_stride, args.value_head_stride,
                static_cast<Int8*>(args.values) + place_of(args, value_slot, args.value_size), args.value_size,
                scale_at(args, args.value_scales, value_slot));
  }
}

template <class From, class To>
void write_tokens(const kvplan_kv_write& args, int64_t begin, int64_t end) {
  constexpr int64_t kTokensAhead = 4;
  for (int64_t token = begin; token < end && token < begin + kTokensAhead; ++token) ask_for_token<To>(args, token);
  for (int64_t token = begin; token < end; ++token) {
    if (token + kTokensAhead < end) ask_for_token<To>(args, token + kTokensAhead);
    const int64_t slot = args.slots[token];
    if (slot < 0) continue;
    const From* key = static_cast<const From*>(args.key) + token * args.key_row_stride;
    write_heads(args, key, args.key_head_stride, static_cast<To*>(args.keys) + place_of(args, slot, args.head_size),
                args.head_size);
    if (args.value == nullptr) continue;
    const int64_t value_slot = args.value_slots == nullptr ? slot : args.value_slots[token];
    const From* value = static_cast<const From*>(args.value) + token * args.value_row_stride;
    write_heads(args, value, args.value_head_stride,
                static_cast<To*>(args.values) + place_of(args, value_slot, args.value_size), args.value_size);
  }
}

template <class From>
void write_from(const kvplan_kv_write& args, int64_t begin, int64_t end) {
  if (args.kv_storage == KVPLAN_BFLOAT16) {
    write_tokens<From, BFloat16>(args, begin, end);
  } else if (args.kv_storage == KVPLAN_FLOAT8_E4M3) {
    write_tokens<From, Float8E4M3>(args, begin, end);
  } else if (args.kv_storage == KVPLAN_INT8) {
    write_integers<From>(args, begin, end);
  } else {
    write_tokens<From, float>(args, begin, end);
  }
}

void write_any(const kvplan_kv_write& args, int64_t begin, int64_t end) {
  if (args.storage == KVPLAN_BFLOAT16) {
    write_from<BFloat16>(args, begin, end);
  } else {
    write_from<float>(args, begin, end);
  }
}

}  // namespace
}  // namespace kvplan

int kvplan_write_kv(const kvplan_kv_write* args, int threads) {
  const int64_t num_slots = args->num_blocks * args->block_size;
  for (int64_t i = 0; i < args->num_tokens; ++i) {
    if (args->slots[i] >= num_slots) return KVPLAN_BAD_INDEX;
    if (args->value_slots == nullptr || args->slots[i] < 0) continue;
    if (args->value_slots[i] < 0 || args->value_slots[i] >= num_slots) return KVPLAN_BAD_INDEX;
  }
  const int64_t grain = kvplan::row_grain(args->num_kv_heads * (args->head_size + args->value_size));
  kvplan::for_each_range(args->num_tokens, grain, threads,
                         [&](int64_t begin, int64_t end) { kvplan::write_any(*args, begin, end); });
  return KVPLAN_OK;
}

int kvplan_copy_blocks(const void* src, int64_t src_blocks, void* dst, int64_t dst_blocks, const int64_t* pairs,
                       int64_t num_pairs, int64_t block_bytes, int threads) {
  for (int64_t i = 0; i < num_pairs; ++i)
    if (pairs[2 * i] < 0 || pairs[2 * i] >= src_blocks || pairs[2 * i + 1] < 0 || pairs[2 * i + 1] >= dst_blocks)
      return KVPLAN_BAD_INDEX;
  kvplan::for_each_range(num_pairs, kvplan::row_grain(block_bytes / 4), threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (src == dst && pairs[2 * i] == pairs[2 * i + 1]) continue;
      std::memcpy(static_cast<char*>(dst) + pairs[2 * i + 1] * block_bytes,
                  static_cast<const char*>(src) + pairs[2 * i] * block_bytes, static_cast<size_t>(block_bytes));
    }
  });
  return KVPLAN_OK;
}
