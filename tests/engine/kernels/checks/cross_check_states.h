// The kernels of layers with a state against plain loops in double precision: part of cross_check.cpp.
#pragma once

#include "cross_check.h"
#include "kvplan_states.h"

// Three sequences, one at its beginning, one without tokens, one that goes on; their states in blocks of any order, whose
// rows begin in the middle of the second block.
struct States {
  std::vector<int32_t> tables, starts{0, 5, 5, 12};
  std::vector<int64_t> positions{0, 1, 2, 3, 4, 9, 10, 11, 12, 13, 14, 15};
  Tensor blocks;
  kvplan_state args;

  States(int storage, int64_t rows, int64_t columns) : blocks(storage, 0) {
    const int64_t each = 3, width = 2 + (rows + each - 1) / each, block = (each + 1) * columns;
    for (int64_t i = 0; i < 3 * width; ++i) tables.push_back(static_cast<int32_t>((i * 5 + 2) % (3 * width)));
    if (3 * width % 5 == 0) tables.assign(tables.size(), 0);  // would not be a permutation: seen by `sound`
    Random random{17};
    blocks = Tensor(storage, 3 * width * block, random, 1);
    args = {blocks.data(), block * element_size(storage), 3 * width, tables.data(), width, width, starts.data(),
            positions.data(), 3, 12, 1, columns * element_size(storage), rows, columns, storage};
  }
  bool sound() const { return tables[0] != tables[1]; }
  // Where an element of the state of `sequence` lies in `blocks`.
  int64_t at(int64_t sequence, int64_t row, int64_t column) const {
    const int64_t size = args.block_bytes / element_size(args.storage), first = size / args.columns - 1;
    const int64_t behind = row - first, each = size / args.columns;
    const int64_t slot = behind < 0 ? args.slot : args.slot + 1 + behind / each;
    const int64_t offset = behind < 0 ? (1 + row) * args.columns : behind % each * args.columns;
    return tables[static_cast<size_t>(sequence * args.table_width + slot)] * size + offset + column;
  }
};

inline void check_convolution(int storage) {
  Worst worst(std::string("convolution with a state, ") + kStorageNames[storage]);
  for (int64_t channels : {3, 70, 300}) {
    const int64_t taps = 4, tokens = 12, row = channels + 3;
    States states(storage, taps - 1, channels);
    Random random{19};
    Tensor x(storage, tokens * row, random, 1), out(storage, tokens * channels), before = states.blocks;
    Tensor weight(KVPLAN_FLOAT32, taps * channels, random, 1), bias(KVPLAN_FLOAT32, channels, random, 1);
    const kvplan_convolution call{states.args, x.data(), out.data(), row, channels, static_cast<float*>(weight.data()),
                                  static_cast<float*>(bias.data()), channels, taps, 1, storage};
    worst.expect(states.sound() && kvplan_convolve(&call, threads) == KVPLAN_OK);
    for (int64_t sequence : {0, 2})
      for (int64_t channel = 0; channel < channels; ++channel) {
        std::vector<double> inputs;
        for (int64_t tap = 0; tap + 1 < taps; ++tap)
          inputs.push_back(sequence == 0 ? 0 : before.at(states.at(sequence, tap, channel)));
        const int64_t first = states.starts[static_cast<size_t>(sequence)];
        const int64_t last = states.starts[static_cast<size_t>(sequence) + 1];
        for (int64_t token = first; token < last; ++token) {
          inputs.push_back(x.at(token * row + channel));
          double sum = bias.at(channel);
          for (int64_t tap = 0; tap < taps; ++tap)
            sum += weight.at(tap * channels + channel) * inputs[inputs.size() - static_cast<size_t>(taps - tap)];
          worst.see(out.at(token * channels + channel), silu(sum), storage, 2e-6);
        }
        for (int64_t tap = 0; tap + 1 < taps; ++tap)
          worst.see(states.blocks.at(states.at(sequence, tap, channel)),
                    inputs[inputs.size() - static_cast<size_t>(taps - 1 - tap)], KVPLAN_FLOAT32, 0);
      }
    states.tables[1] = static_cast<int32_t>(states.args.num_blocks);
    worst.expect(kvplan_convolve(&call, threads) == KVPLAN_BAD_INDEX);
  }
}

// One head's state [values, keys] in double precision, from token to token.
struct PlainDelta {
  std::vector<double> state;
  int64_t keys, values;

  std::vector<double> step(std::vector<double> query, std::vector<double> key, const std::vector<double>& value,
                           const std::vector<double>& decay, double strength) {
    double query_square = 1e-6, key_square = 1e-6;
    for (int64_t i = 0; i < keys; ++i) {
      query_square += query[static_cast<size_t>(i)] * query[static_cast<size_t>(i)];
      key_square += key[static_cast<size_t>(i)] * key[static_cast<size_t>(i)];
    }
    std::vector<double> out;
    for (int64_t v = 0; v < values; ++v) {
      double* row = state.data() + v * keys;
      double known = 0, result = 0;
      for (int64_t i = 0; i < keys; ++i) {
        row[i] *= decay[static_cast<size_t>(i)];
        known += row[i] * key[static_cast<size_t>(i)] / std::sqrt(key_square);
      }
      const double change = (value[static_cast<size_t>(v)] - known) * strength;
      for (int64_t i = 0; i < keys; ++i) {
        row[i] += change * key[static_cast<size_t>(i)] / std::sqrt(key_square);
        result += row[i] * query[static_cast<size_t>(i)] / std::sqrt(query_square);
      }
      out.push_back(result);
    }
    return out;
  }
};

inline void check_delta_rule(int storage, bool by_element) {
  Worst worst(std::string("delta rule, decays of ") + (by_element ? "elements, " : "heads, ") + kStorageNames[storage]);
  const int64_t heads = 2, keys = 21, values = 38, tokens = 12, decays = by_element ? heads * keys : heads;
  States states(KVPLAN_FLOAT32, heads * values, keys);
  Random random{23};
  Tensor query(storage, tokens * keys, random, 1), key(storage, tokens * keys, random, 1), before = states.blocks;
  Tensor value(storage, tokens * heads * values, random, 1), out(storage, tokens * heads * values);
  Tensor decay(storage, tokens * decays, random, 2), strength(storage, tokens * heads, random, 2);
  Tensor rate(KVPLAN_FLOAT32, heads, 0.4), bias(KVPLAN_FLOAT32, decays, random, 1);
  const kvplan_delta_rule call{states.args, query.data(), key.data(), value.data(), out.data(), decay.data(),
                               strength.data(), keys, keys, heads * values, heads * values, decays, heads,
                               static_cast<float*>(rate.data()), static_cast<float*>(bias.data()), heads, 1, keys,
                               values, 1.0f, 2.0f, by_element, storage};
  worst.expect(states.sound() && kvplan_run_delta_rule(&call, threads) == KVPLAN_OK);
  for (int64_t sequence : {0, 2})
    for (int64_t head = 0; head < heads; ++head) {
      PlainDelta plain{{}, keys, values};
      for (int64_t i = 0; i < values * keys; ++i)
        plain.state.push_back(sequence == 0 ? 0 : before.at(states.at(sequence, head * values + i / keys, i % keys)));
      const int64_t first = states.starts[static_cast<size_t>(sequence)];
      const int64_t last = states.starts[static_cast<size_t>(sequence) + 1];
      for (int64_t token = first; token < last; ++token) {
        std::vector<double> q, k, v, factors;
        for (int64_t i = 0; i < keys; ++i) {
          const int64_t at = by_element ? head * keys + i : head;
          q.push_back(query.at(token * keys + i)), k.push_back(key.at(token * keys + i));
          factors.push_back(std::exp(-rate.at(head) * std::log1p(std::exp(decay.at(token * decays + at) + bias.at(at)))));
        }
        for (int64_t i = 0; i < values; ++i) v.push_back(value.at((token * heads + head) * values + i));
        const std::vector<double> want = plain.step(q, k, v, factors, 2 / (1 + std::exp(-strength.at(token * heads + head))));
        for (int64_t i = 0; i < values; ++i)
          worst.see(out.at((token * heads + head) * values + i), want[static_cast<size_t>(i)], storage, 2e-5);
      }
      for (int64_t i = 0; i < values * keys; ++i)
        worst.see(states.blocks.at(states.at(sequence, head * values + i / keys, i % keys)),
                  plain.state[static_cast<size_t>(i)], KVPLAN_FLOAT32, 2e-5);
    }
}

inline void check_states(int storage) {
  check_convolution(storage);
  for (bool by_element : {false, true}) check_delta_rule(storage, by_element);
}
