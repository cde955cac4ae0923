// A causal convolution over the tokens of each sequence, which goes on from the inputs that the last step ended with.
#include "../parallel.h"
#include "../simd_math.h"
#include "state_rows.h"

namespace kvplan {
namespace {

constexpr int64_t kStripe = 256;    // channels that a thread takes at once: of a few tokens they fit the first-level cache
constexpr int64_t kTileTokens = 16;

// The inputs of one stripe of channels before the next token, oldest first.
template <int kTaps>
using Past = float[kTaps - 1][kStripe];

// The lanes from `channel` on of up to kTileTokens tokens, where `width` channels are left.
template <class T, int kTaps>
KVPLAN_INLINE void convolve_lanes(const kvplan_convolution& args, int64_t channel, int64_t width, int64_t begin,
                                  int64_t end, float* past) {
  const int count = static_cast<int>(width < kLanes ? width : kLanes);
  const auto part = [count](const auto* source) { return count == kLanes ? load(source) : load_part(source, count); };
  Floats weight[kTaps], input[kTaps];
  for (int tap = 0; tap < kTaps; ++tap) weight[tap] = part(args.weight + tap * args.channels + channel);
  for (int tap = 0; tap + 1 < kTaps; ++tap) input[tap] = load(past + tap * kStripe);
  const Floats bias = args.bias == nullptr ? Floats{} : part(args.bias + channel);
  const T* x = static_cast<const T*>(args.x) + channel;
  T* out = static_cast<T*>(args.out) + channel;
  for (int64_t token = begin; token < end; ++token) {
    input[kTaps - 1] = part(x + token * args.x_stride);
    Floats sum = bias;
    for (int tap = 0; tap < kTaps; ++tap) sum += input[tap] * weight[tap];
    if (args.silu) sum = silu(sum);
    if (count == kLanes) {
      store(out + token * args.out_stride, sum);
    } else {
      store_part(out + token * args.out_stride, sum, count);
    }
    for (int tap = 0; tap + 1 < kTaps; ++tap) input[tap] = input[tap + 1];
  }
  for (int tap = 0; tap + 1 < kTaps; ++tap) store(past + tap * kStripe, input[tap]);
}

// One sequence's tokens in the channels from `first` on.
template <class T, class S, int kTaps>
void convolve_stripe(const kvplan_convolution& args, const StateRows& rows, int64_t sequence, int64_t first) {
  const int64_t width = args.channels - first < kStripe ? args.channels - first : kStripe;
  Past<kTaps> past = {};
  if (!rows.is_new(sequence))
    for (int tap = 0; tap + 1 < kTaps; ++tap) read_row(rows.row<S>(sequence, tap) + first, past[tap], width);
  const int64_t end = args.state.query_starts[sequence + 1];
  for (int64_t token = args.state.query_starts[sequence]; token < end; token += kTileTokens) {
    const int64_t last = token + kTileTokens < end ? token + kTileTokens : end;
    for (int64_t column = 0; column < width; column += kLanes)
      convolve_lanes<T, kTaps>(args, first + column, width - column, token, last, past[0] + column);
  }
  for (int tap = 0; tap + 1 < kTaps; ++tap) write_row(past[tap], rows.row<S>(sequence, tap) + first, width);
}

template <class T, class S, int kTaps>
int convolve(const kvplan_convolution& args, const StateRows& rows, int threads) {
  const int64_t stripes = (args.channels + kStripe - 1) / kStripe;
  const int64_t items = args.state.num_sequences * stripes;
  const int64_t tokens = args.state.num_tokens / (args.state.num_sequences > 0 ? args.state.num_sequences : 1) + 1;
  for_each_range(items, row_grain(kStripe * tokens), threads, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item)
      if (rows.has_tokens(item / stripes))
        convolve_stripe<T, S, kTaps>(args, rows, item / stripes, item % stripes * kStripe);
  });
  return KVPLAN_OK;
}

template <class T, class S>
int convolve_taps(const kvplan_convolution& args, const StateRows& rows, int threads) {
  switch (args.taps) {
    case 2: return convolve<T, S, 2>(args, rows, threads);
    case 3: return convolve<T, S, 3>(args, rows, threads);
    case 4: return convolve<T, S, 4>(args, rows, threads);
    case 5: return convolve<T, S, 5>(args, rows, threads);
    case 6: return convolve<T, S, 6>(args, rows, threads);
    case 7: return convolve<T, S, 7>(args, rows, threads);
    case 8: return convolve<T, S, 8>(args, rows, threads);
    default: return KVPLAN_BAD_INDEX;
  }
}

template <class T>
int convolve_storage(const kvplan_convolution& args, const StateRows& rows, int threads) {
  if (args.state.storage == KVPLAN_BFLOAT16) return convolve_taps<T, BFloat16>(args, rows, threads);
  return convolve_taps<T, float>(args, rows, threads);
}

}  // namespace
}  // namespace kvplan

int kvplan_convolve(const kvplan_convolution* args, int threads) {
  using namespace kvplan;
  const StateRows rows(args->state);
  if (args->state.rows != args->taps - 1 || args->state.columns != args->channels || !rows.is_sound())
    return KVPLAN_BAD_INDEX;
  if (args->storage == KVPLAN_BFLOAT16) return convolve_storage<BFloat16>(*args, rows, threads);
  return convolve_storage<float>(*args, rows, threads);
}
