// Mamba's recurrence (Gu & Dao, Mamba, 2023), token by token, over states that lie in the pool.
//
// One item is a stripe of channels of one sequence. A channel's state is one row of few columns, so a step's exponentials
// are most of the work: they are computed in vectors along the columns, the time steps in vectors along the channels.
#include <algorithm>
#include <vector>

#include "../../include/kvplan_mamba.h"
#include "../parallel.h"
#include "../simd_math.h"
#include "state_working.h"

namespace kvplan {
namespace {

constexpr int64_t kStripe = 64;  // channels
static_assert(kStripe % kLanes == 0, "a stripe is whole vectors");

// What the channels of a stripe do with one token.
struct Token {
  float steps[kStripe], inputs[kStripe];  // softplus(step + bias), x
  float *b, *c;                           // [padded]
};

template <class T>
void read_token(const kvplan_mamba1& args, int64_t token, int64_t channel, int64_t width, Token& to) {
  read_padded(static_cast<const T*>(args.x) + token * args.x_stride + channel, to.inputs, width);
  read_padded(static_cast<const T*>(args.steps) + token * args.steps_stride + channel, to.steps, width);
  for (int64_t i = 0; i < width; i += kLanes) {
    const int count = static_cast<int>(std::min<int64_t>(width - i, kLanes));
    store(to.steps + i, softplus(load(to.steps + i) + load_part(args.step_bias + channel + i, count)));
  }
  read_padded(static_cast<const T*>(args.b) + token * args.b_stride, to.b, args.state.columns);
  read_padded(static_cast<const T*>(args.c) + token * args.c_stride, to.c, args.state.columns);
}

// One channel's state moves on; what it gives.
KVPLAN_INLINE float pass_channel(const Token& token, int64_t channel, const float* decay, int64_t padded, float* state) {
  const float step = token.steps[channel], input = step * token.inputs[channel];
  Floats sum = {};
  for (int64_t column = 0; column < padded; column += kLanes) {
    const Floats held = load(state + column) * exp(step * load(decay + column)) + input * load(token.b + column);
    store(state + column, held);
    sum += held * load(token.c + column);
  }
  return sum_of(sum);
}

template <class T, class S>
void run_stripe(const kvplan_mamba1& args, const StateRows& rows, int64_t sequence, int64_t first) {
  static thread_local std::vector<float> memory;
  const int64_t columns = args.state.columns, padded = padded_columns(columns);
  const int64_t width = std::min(kStripe, args.state.rows - first);
  memory.resize(static_cast<size_t>((kStripe + 2) * padded));
  float* copied = memory.data() + 2 * padded;
  const bool copies = padded != columns;
  for (int64_t i = 0; i < width && copies; ++i)
    read_padded(args.decay + (first + i) * columns, copied + i * padded, columns);
  const float* decay = copies ? copied : args.decay + first * columns;
  WorkingRows<S> state(rows, sequence, first, width, columns);
  Token token{{}, {}, memory.data(), memory.data() + padded};
  const int64_t end = args.state.query_starts[sequence + 1];
  for (int64_t row = args.state.query_starts[sequence]; row < end; ++row) {
    read_token<T>(args, row, first, width, token);
    T* out = static_cast<T*>(args.out) + row * args.out_stride + first;
    for (int64_t i = 0; i < width; ++i) {
      const float passed = pass_channel(token, i, decay + i * padded, padded, state.row(i));
      put(out + i, passed + args.skip[first + i] * token.inputs[i]);
    }
  }
  state.write_back();
}

template <class T>
int scan(const kvplan_mamba1& args, int threads) {
  const StateRows rows(args.state);
  if (!rows.is_sound()) return KVPLAN_BAD_INDEX;
  const int64_t stripes = (args.state.rows + kStripe - 1) / kStripe;
  for_each_item(args.state.num_sequences * stripes, threads, [&](int, int64_t item) {
    const int64_t sequence = item / stripes, first = item % stripes * kStripe;
    if (!rows.has_tokens(sequence)) return;
    if (args.state.storage == KVPLAN_BFLOAT16) {
      run_stripe<T, BFloat16>(args, rows, sequence, first);
    } else {
      run_stripe<T, float>(args, rows, sequence, first);
    }
  });
  return KVPLAN_OK;
}

}  // namespace
}  // namespace kvplan

int kvplan_mamba1_scan(const kvplan_mamba1* args, int threads) {
  return args->storage == KVPLAN_BFLOAT16 ? kvplan::scan<kvplan::BFloat16>(*args, threads)
                                          : kvplan::scan<float>(*args, threads);
}
