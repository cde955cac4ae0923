// The gated delta rule, token after token, over states that lie in the pool.
//
// Rows of a state do not depend on each other, so a head's are shared out in tiles that fit the first-level cache beside
// what all of them need of a token. With S' = S exp(g) and d = (v - S' k) b the output is S' q + d (k q): so one pass over
// the rows gives both products, and a second one changes them.
#include <cmath>

#include "../parallel.h"
#include "../simd_math.h"
#include "state_rows.h"
#include "state_working.h"

namespace kvplan {
namespace {

constexpr int64_t kTileRows = 32;
constexpr int64_t kMostKey = KVPLAN_MOST_KEY_SIZE;

// What the rows of a head need of one token: vectors of a key's size, filled up with zeros.
struct alignas(64) Token {
  float query[kMostKey], key[kMostKey], decay[kMostKey];
  float decayed_query[kMostKey], decayed_key[kMostKey];
  float key_query, strength;
};

KVPLAN_INLINE float dot(const float* a, const float* b, int64_t padded) {
  Floats sum = {};
  for (int64_t i = 0; i < padded; i += kLanes) sum += load(a + i) * load(b + i);
  return sum_of(sum);
}

KVPLAN_INLINE void scale_by(float* row, float factor, int64_t padded) {
  for (int64_t i = 0; i < padded; i += kLanes) store(row + i, load(row + i) * factor);
}

KVPLAN_INLINE float softplus_of(float x) {
  return softplus(splat(x))[0];
}

// exp(g) of a head
template <class T>
KVPLAN_INLINE void read_decay(const kvplan_delta_rule& args, int64_t token, int64_t head, float* decay,
                              int64_t padded) {
  const float rate = args.rate[head];
  if (args.decay == nullptr || !args.element_decays) {
    float g = -rate;
    if (args.decay != nullptr) {
      const T* raw = static_cast<const T*>(args.decay) + token * args.decay_stride + head;
      g *= softplus_of(to_float(*raw) + args.decay_bias[head]);
    }
    const Floats factor = splat(std::exp(g));
    for (int64_t i = 0; i < padded; i += kLanes) store(decay + i, factor);
    return;
  }
  const T* raw = static_cast<const T*>(args.decay) + token * args.decay_stride + head * args.key_size;
  float bias[kMostKey];
  read_padded(raw, decay, args.key_size);
  read_padded(args.decay_bias + head * args.key_size, bias, args.key_size);
  for (int64_t i = 0; i < padded; i += kLanes)
    store(decay + i, exp(softplus(load(decay + i) + load(bias + i)) * -rate));
}

template <class T>
KVPLAN_INLINE void read_token(const kvplan_delta_rule& args, int64_t row, int64_t head, Token& token, int64_t padded) {
  constexpr float kLeastSquare = 1e-6f;
  const int64_t first = head * args.key_heads / args.heads * args.key_size;
  read_padded(static_cast<const T*>(args.query) + row * args.query_stride + first, token.query, args.key_size);
  read_padded(static_cast<const T*>(args.key) + row * args.key_stride + first, token.key, args.key_size);
  float query_scale = args.scale;
  if (args.strength != nullptr) {
    query_scale /= std::sqrt(dot(token.query, token.query, padded) + kLeastSquare);
    scale_by(token.key, 1.0f / std::sqrt(dot(token.key, token.key, padded) + kLeastSquare), padded);
    const T* raw = static_cast<const T*>(args.strength) + row * args.strength_stride + head;
    token.strength = args.strength_scale / (1.0f + std::exp(-to_float(*raw)));
  }
  scale_by(token.query, query_scale, padded);
  token.key_query = dot(token.key, token.query, padded);
  read_decay<T>(args, row, head, token.decay, padded);
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Floats decay = load(token.decay + i);
    store(token.decayed_query + i, load(token.query + i) * decay);
    store(token.decayed_key + i, load(token.key + i) * decay);
  }
}

// Four rows of the state go on by one token; their outputs.
template <bool kDelta>
KVPLAN_INLINE Floats4 step_rows(float* const rows[4], Floats4 values, const Token& token, int64_t padded) {
  Floats of_query[4] = {}, of_key[4] = {};
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Floats query = load(token.decayed_query + i), key = load(token.decayed_key + i);
    for (int r = 0; r < 4; ++r) {
      const Floats state = load(rows[r] + i);
      of_query[r] += state * query;
      if (kDelta) of_key[r] += state * key;
    }
  }
  Floats4 change = values;
  if (kDelta) change = (values - sums_of_four(of_key[0], of_key[1], of_key[2], of_key[3])) * token.strength;
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Floats key = load(token.key + i), decay = load(token.decay + i);
    for (int r = 0; r < 4; ++r) store(rows[r] + i, load(rows[r] + i) * decay + key * change[r]);
  }
  return sums_of_four(of_query[0], of_query[1], of_query[2], of_query[3]) + change * token.key_query;
}

// Rows [first, first + count) of a head's state, through all of the sequence's new tokens.
template <class T, class S, bool kDelta>
void run_tile(const kvplan_delta_rule& args, const StateRows& states, int64_t sequence, int64_t head, int64_t first,
              int64_t count) {
  const int64_t padded = padded_columns(args.key_size), start = head * args.value_size + first;
  const WorkingRows<S> tile(states, sequence, start, count, args.key_size);
  alignas(64) float nobodys[kMostKey] = {};  // where the last four are not full
  float* rows[kTileRows];
  for (int64_t i = 0; i < kTileRows; ++i) rows[i] = i < count ? tile.row(i) : nobodys;
  Token token;
  const int64_t end = args.state.query_starts[sequence + 1];
  for (int64_t row = args.state.query_starts[sequence]; row < end; ++row) {
    read_token<T>(args, row, head, token, padded);
    const T* values = static_cast<const T*>(args.value) + row * args.value_stride + start;
    T* out = static_cast<T*>(args.out) + row * args.out_stride + start;
    for (int64_t i = 0; i < count; i += 4) {
      const int left = static_cast<int>(count - i < 4 ? count - i : 4);
      Floats4 given = {};
      for (int r = 0; r < left; ++r) given[r] = to_float(values[i + r]);
      const Floats4 result = step_rows<kDelta>(rows + i, given, token, padded);
      for (int r = 0; r < left; ++r) put(out + i + r, result[r]);
    }
  }
  tile.write_back();
}

template <class T, class S>
int run_delta(const kvplan_delta_rule& args, const StateRows& states, int threads) {
  const int64_t tiles = (args.value_size + kTileRows - 1) / kTileRows;
  for_each_item(args.state.num_sequences * args.heads * tiles, threads, [&](int, int64_t item) {
    const int64_t sequence = item / (args.heads * tiles), head = item / tiles % args.heads;
    if (!states.has_tokens(sequence)) return;
    const int64_t first = item % tiles * kTileRows;
    const int64_t count = args.value_size - first < kTileRows ? args.value_size - first : kTileRows;
    const auto run = args.strength != nullptr ? run_tile<T, S, true> : run_tile<T, S, false>;
    run(args, states, sequence, head, first, count);
  });
  return KVPLAN_OK;
}

template <class T>
int run_storage(const kvplan_delta_rule& args, const StateRows& states, int threads) {
  if (args.state.storage == KVPLAN_BFLOAT16) return run_delta<T, BFloat16>(args, states, threads);
  return run_delta<T, float>(args, states, threads);
}

}  // namespace
}  // namespace kvplan

int kvplan_run_delta_rule(const kvplan_delta_rule* args, int threads) {
  using namespace kvplan;
  const StateRows states(args->state);
  if (args->key_size > kMostKey || args->state.columns != args->key_size ||
      args->state.rows != args->heads * args->value_size || args->heads % args->key_heads != 0 || !states.is_sound())
    return KVPLAN_BAD_INDEX;
  if (args->storage == KVPLAN_BFLOAT16) return run_storage<BFloat16>(*args, states, threads);
  return run_storage<float>(*args, states, threads);
}
