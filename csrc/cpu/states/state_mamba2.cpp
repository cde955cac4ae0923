// Mamba 2's recurrence (Dao & Gu, Transformers are SSMs, 2024), token by token, over states that lie in the pool.
//
// One item is one head of one sequence. Tokens are taken in runs: a row of the state stays in registers while a run
// passes, and the run's decays, and its B and C as floats, are made once for all rows of the head.
#include <algorithm>
#include <vector>

#include "../../include/kvplan_mamba.h"
#include "../parallel.h"
#include "../simd_math.h"
#include "state_working.h"

namespace kvplan {
namespace {

constexpr int64_t kRun = 16;  // tokens
static_assert(kRun % kLanes == 0, "steps of a run are made in whole vectors");

// What all rows of a head need of a run of tokens.
struct Run {
  int64_t first, count;  // tokens
  float steps[kRun], decays[kRun];
  const float *b, *c;  // [count, padded]
};

// steps = softplus(steps + bias) within limits; decays = exp(steps * decay)
template <class T>
void make_steps(const kvplan_mamba2& args, int64_t head, Run& run) {
  const T* source = static_cast<const T*>(args.steps) + head;
  for (int64_t i = 0; i < kRun; ++i)
    run.steps[i] = i < run.count ? to_float(source[(run.first + i) * args.steps_stride]) : 0.0f;
  for (int64_t i = 0; i < kRun; i += kLanes) {
    Floats step = softplus(load(run.steps + i) + args.step_bias[head]);
    step = step < args.least_step ? splat(args.least_step) : step;
    step = step > args.most_step ? splat(args.most_step) : step;
    store(run.steps + i, step);
    store(run.decays + i, exp(step * args.decay[head]));
  }
}

// kVectors vectors of a row of the state over a run, whose products with C are added to sums [count].
template <int kVectors>
KVPLAN_INLINE void pass_vectors(const Run& run, int64_t padded, const float* inputs, float* state, int64_t column,
                                Floats* sums) {
  Floats held[kVectors];
  for (int v = 0; v < kVectors; ++v) held[v] = load(state + column + v * kLanes);
  for (int64_t i = 0; i < run.count; ++i) {
    const float* b = run.b + i * padded + column;
    const float* c = run.c + i * padded + column;
    Floats parts[2] = {sums[i], Floats{}};
    for (int v = 0; v < kVectors; ++v) {
      held[v] = held[v] * run.decays[i] + inputs[i] * load(b + v * kLanes);
      parts[v % 2] += held[v] * load(c + v * kLanes);
    }
    sums[i] = parts[0] + parts[1];
  }
  for (int v = 0; v < kVectors; ++v) store(state + column + v * kLanes, held[v]);
}

// One row of the state over a run, and one output of each of its tokens.
template <class T>
void pass_row(const kvplan_mamba2& args, const Run& run, int64_t padded, int64_t head, int64_t row, float* state) {
  const int64_t element = head * args.rows + row;
  const T* x = static_cast<const T*>(args.x) + run.first * args.x_stride + element;
  T* out = static_cast<T*>(args.out) + run.first * args.out_stride + element;
  float inputs[kRun];
  Floats sums[kRun] = {};
  for (int64_t i = 0; i < run.count; ++i) inputs[i] = run.steps[i] * to_float(x[i * args.x_stride]);
  int64_t column = 0;
  for (; column + 8 * kLanes <= padded; column += 8 * kLanes)
    pass_vectors<8>(run, padded, inputs, state, column, sums);
  for (; column + 2 * kLanes <= padded; column += 2 * kLanes)
    pass_vectors<2>(run, padded, inputs, state, column, sums);
  if (column < padded) pass_vectors<1>(run, padded, inputs, state, column, sums);
  for (int64_t i = 0; i < run.count; ++i)
    put(out + i * args.out_stride, sum_of(sums[i]) + args.skip[head] * to_float(x[i * args.x_stride]));
}

// One token, over rows that lie one behind the other and are whole vectors: the state is read and written once.
template <class T, class S, int kVectors>
KVPLAN_INLINE void pass_token(const kvplan_mamba2& args, const Run& run, int64_t head, int64_t row, int64_t count,
                              bool is_new, S* state) {
  const int64_t element = head * args.rows + row;
  const T* x = static_cast<const T*>(args.x) + run.first * args.x_stride + element;
  T* out = static_cast<T*>(args.out) + run.first * args.out_stride + element;
  const float step = run.steps[0], decay = run.decays[0], skip = args.skip[head];
  for (int64_t i = 0; i < count; ++i, state += kVectors * kLanes) {
    const float value = to_float(x[i]), input = step * value;
    Floats sums[2] = {};
    for (int v = 0; v < kVectors; ++v) {
      const Floats past = is_new ? Floats{} : load(state + v * kLanes);
      const Floats held = past * decay + input * load(run.b + v * kLanes);
      store(state + v * kLanes, held);
      sums[v % 2] += held * load(run.c + v * kLanes);
    }
    put(out + i, sum_of(sums[0] + sums[1]) + skip * value);
  }
}

template <class T, class S>
void pass_rows_together(const kvplan_mamba2& args, const Run& run, int64_t head, int64_t row, int64_t count,
                        bool is_new, S* state) {
  switch (args.state.columns / kLanes) {
    case 1: return pass_token<T, S, 1>(args, run, head, row, count, is_new, state);
    case 2: return pass_token<T, S, 2>(args, run, head, row, count, is_new, state);
    case 4: return pass_token<T, S, 4>(args, run, head, row, count, is_new, state);
    case 8: return pass_token<T, S, 8>(args, run, head, row, count, is_new, state);
    case 16: return pass_token<T, S, 16>(args, run, head, row, count, is_new, state);
    default: return pass_token<T, S, 32>(args, run, head, row, count, is_new, state);
  }
}

// Whether rows have 1, 2, 4 .. 32 whole vectors.
bool is_whole(int64_t columns) {
  const int64_t vectors = columns / kLanes;
  return columns % kLanes == 0 && vectors <= 32 && (vectors & (vectors - 1)) == 0;
}

// One head's only token.
template <class T, class S>
void decode_head(const kvplan_mamba2& args, const StateRows& rows, const Run& run, int64_t sequence, int64_t head) {
  const bool is_new = rows.is_new(sequence);
  for (int64_t row = 0; row < args.rows;) {
    const int64_t index = head * args.rows + row;
    const int64_t count = std::min(rows.rows_together(index), args.rows - row);
    pass_rows_together<T>(args, run, head, row, count, is_new, rows.row<S>(sequence, index));
    row += count;
  }
}

template <class T>
void read_run(const kvplan_mamba2& args, int64_t head, Run& run, float* b, float* c) {
  const int64_t columns = args.state.columns, padded = padded_columns(columns);
  const int64_t group = head / (args.heads / args.groups) * columns;
  make_steps<T>(args, head, run);
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t token = run.first + i;
    read_padded(static_cast<const T*>(args.b) + token * args.b_stride + group, b + i * padded, columns);
    read_padded(static_cast<const T*>(args.c) + token * args.c_stride + group, c + i * padded, columns);
  }
}

template <class T, class S>
void run_head(const kvplan_mamba2& args, const StateRows& rows, int64_t sequence, int64_t head) {
  static thread_local std::vector<float> memory;
  const int64_t columns = args.state.columns, padded = padded_columns(columns);
  memory.resize(static_cast<size_t>(2 * kRun * padded));
  float *b = memory.data(), *c = b + kRun * padded;
  const int64_t begin = args.state.query_starts[sequence], end = args.state.query_starts[sequence + 1];
  if (end - begin == 1 && is_whole(columns)) {
    Run run{begin, 1, {}, {}, b, c};
    read_run<T>(args, head, run, b, c);
    return decode_head<T, S>(args, rows, run, sequence, head);
  }
  WorkingRows<S> state(rows, sequence, head * args.rows, args.rows, columns);
  for (int64_t first = begin; first < end; first += kRun) {
    Run run{first, std::min(kRun, end - first), {}, {}, b, c};
    read_run<T>(args, head, run, b, c);
    for (int64_t row = 0; row < args.rows; ++row) pass_row<T>(args, run, padded, head, row, state.row(row));
  }
  state.write_back();
}

template <class T>
int scan(const kvplan_mamba2& args, int threads) {
  const StateRows rows(args.state);
  if (args.state.rows != args.heads * args.rows || args.heads % args.groups != 0 || !rows.is_sound())
    return KVPLAN_BAD_INDEX;
  for_each_item(args.state.num_sequences * args.heads, threads, [&](int, int64_t item) {
    const int64_t sequence = item / args.heads, head = item % args.heads;
    if (!rows.has_tokens(sequence)) return;
    if (args.state.storage == KVPLAN_BFLOAT16) {
      run_head<T, BFloat16>(args, rows, sequence, head);
    } else {
      run_head<T, float>(args, rows, sequence, head);
    }
  });
  return KVPLAN_OK;
}

}  // namespace
}  // namespace kvplan

int kvplan_mamba2_scan(const kvplan_mamba2* args, int threads) {
  return args->storage == KVPLAN_BFLOAT16 ? kvplan::scan<kvplan::BFloat16>(*args, threads)
                                          : kvplan::scan<float>(*args, threads);
}
