// All layers of a step in one call: at small batches the calls themselves cost as much as the norms and the attention.
#include <chrono>
#include <cstring>

#include "../include/kvplan_cpu.h"
#include "activation.h"

namespace {

int multiply(kvplan_packed_linear product, const void* x, void* out, int64_t rows, int threads) {
  product.x = x;
  product.out = out;
  product.rows = rows;
  product.x_stride = product.inputs;
  product.out_stride = kvplan::is_gated(product.activation) ? product.outputs / 2 : product.outputs;
  return kvplan_multiply_packed(&product, threads);
}

// hidden += delta, normed = norm(hidden); LayerNorm where there is a bias.
int add_and_normalise(kvplan_norm norm, const kvplan_layers& run, int threads) {
  norm.delta = run.delta;
  norm.x = run.hidden;
  norm.out = run.normed;
  norm.rows = run.attention->num_tokens;
  norm.delta_stride = norm.x_stride = norm.out_stride = norm.width;
  return norm.bias == nullptr ? kvplan_rms_norm(&norm, threads) : kvplan_layer_norm(&norm, threads);
}

// Each of `count` heads of every token, from head `first` of qkv on, in place.
int normalise_heads(kvplan_norm norm, const kvplan_layers& run, int64_t first, int64_t count, int threads) {
  if (norm.weight == nullptr) return KVPLAN_OK;
  const kvplan_attention& attention = *run.attention;
  const int64_t element = attention.storage == KVPLAN_BFLOAT16 ? 2 : 4;
  norm.x = norm.out = static_cast<char*>(run.qkv) + first * attention.head_size * element;
  norm.rows = attention.num_tokens * count;
  norm.heads = count;
  norm.x_stride = norm.out_stride = attention.query_row_stride;
  return norm.bias == nullptr ? kvplan_rms_norm(&norm, threads) : kvplan_layer_norm(&norm, threads);
}

int normalise_queries_and_keys(const kvplan_layers& run, const kvplan_layer& layer, int threads) {
  const int64_t queries = run.attention->num_heads, keys = run.attention->num_kv_heads;
  const int status = normalise_heads(layer.query_norm, run, 0, queries, threads);
  return status == KVPLAN_OK ? normalise_heads(layer.key_norm, run, queries, keys, threads) : status;
}

int rotate(const kvplan_layers& run, int threads) {
  const kvplan_attention& attention = *run.attention;
  return kvplan_rope(run.qkv, attention.query_row_stride, attention.query_head_stride, run.positions, run.cos_sin,
                     run.rope_rows, attention.num_tokens, attention.num_heads + attention.num_kv_heads, run.rotary,
                     attention.storage, threads);
}

int write_kv(const kvplan_layers& run, int64_t layer, int threads) {
  kvplan_kv_write write = *run.write;
  write.keys = static_cast<char*>(write.keys) + layer * run.kv_layer_bytes;
  write.values = static_cast<char*>(write.values) + layer * run.kv_layer_bytes;
  return kvplan_write_kv(&write, threads);
}

int attend(const kvplan_layers& run, int64_t layer, int threads) {
  kvplan_attention attention = *run.attention;
  attention.keys = static_cast<const char*>(attention.keys) + layer * run.kv_layer_bytes;
  attention.values = static_cast<const char*>(attention.values) + layer * run.kv_layer_bytes;
  return kvplan_paged_attention(&attention, threads);
}

// Adds the time since the last call to an operation's place; does nothing where nobody asked for times.
class OperationClock {
 public:
  explicit OperationClock(double* seconds) : seconds_(seconds) {
    if (seconds_ != nullptr) last_ = std::chrono::steady_clock::now();
  }

  // Passes the operation's status on.
  int ended(kvplan_layer_operation operation, int status) {
    if (seconds_ == nullptr) return status;
    const auto now = std::chrono::steady_clock::now();
    seconds_[operation] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return status;
  }

 private:
  double* seconds_;
  std::chrono::steady_clock::time_point last_;
};

// From the layer's input to its keys and values in the pool.
int run_first_half(const kvplan_layers& run, int64_t index, int threads, OperationClock& clock) {
  const kvplan_layer& layer = run.layers[index];
  int status = clock.ended(KVPLAN_QKV, multiply(layer.qkv, run.normed, run.qkv, run.attention->num_tokens, threads));
  if (status == KVPLAN_OK && layer.query_norm.weight != nullptr)
    status = clock.ended(KVPLAN_NORMS, normalise_queries_and_keys(run, layer, threads));
  if (status == KVPLAN_OK && run.cos_sin != nullptr) status = clock.ended(KVPLAN_ROPE, rotate(run, threads));
  return status == KVPLAN_OK ? clock.ended(KVPLAN_WRITE_KV, write_kv(run, index, threads)) : status;
}

int run_second_half(const kvplan_layers& run, int64_t index, int threads, OperationClock& clock) {
  const kvplan_layer& layer = run.layers[index];
  const int64_t rows = run.attention->num_tokens;
  const void* attended = run.attention->out;
  int status = clock.ended(KVPLAN_ATTENTION, attend(run, index, threads));
  if (status == KVPLAN_OK)
    status = clock.ended(KVPLAN_OUTPUT, multiply(layer.output, attended, run.delta, rows, threads));
  if (status == KVPLAN_OK) status = clock.ended(KVPLAN_NORMS, add_and_normalise(layer.mlp_norm, run, threads));
  if (status == KVPLAN_OK) status = clock.ended(KVPLAN_UP, multiply(layer.up, run.normed, run.inner, rows, threads));
  if (status == KVPLAN_OK) status = clock.ended(KVPLAN_DOWN, multiply(layer.down, run.inner, run.delta, rows, threads));
  if (status == KVPLAN_OK) status = clock.ended(KVPLAN_NORMS, add_and_normalise(layer.next_norm, run, threads));
  return status;
}

// The run narrowed to its last rows, whose residual stream and queries are copied together.
kvplan_layers take_last_rows(const kvplan_layers& run) {
  const kvplan_attention& all = *run.attention;
  const size_t element = all.storage == KVPLAN_BFLOAT16 ? 2 : 4;
  const size_t hidden_bytes = element * static_cast<size_t>(run.layers[0].next_norm.width);
  const size_t query_bytes = element * static_cast<size_t>(all.num_heads * all.head_size);
  const size_t stride_bytes = element * static_cast<size_t>(all.query_row_stride);
  kvplan_layers last = run;
  last.attention = run.last_attention;
  last.hidden = run.last_hidden;
  char* query = static_cast<char*>(const_cast<void*>(last.attention->query));
  for (int64_t i = 0; i < last.attention->num_tokens; ++i) {
    const size_t to = static_cast<size_t>(i), from = static_cast<size_t>(run.last_rows[i]);
    std::memcpy(static_cast<char*>(last.hidden) + to * hidden_bytes,
                static_cast<const char*>(run.hidden) + from * hidden_bytes, hidden_bytes);
    std::memcpy(query + to * query_bytes, static_cast<const char*>(all.query) + from * stride_bytes, query_bytes);
  }
  return last;
}

}  // namespace

int kvplan_run_layers(const kvplan_layers* run, int threads) {
  int status = KVPLAN_OK;
  OperationClock clock(run->operation_seconds);
  for (int64_t i = 0; i < run->num_layers && status == KVPLAN_OK; ++i) {
    status = run_first_half(*run, i, threads, clock);
    if (status != KVPLAN_OK) return status;
    const bool narrows = run->last_attention != nullptr && i + 1 == run->num_layers;
    if (narrows && run->last_attention->num_tokens == 0) return KVPLAN_OK;
    status = run_second_half(narrows ? take_last_rows(*run) : *run, i, threads, clock);
  }
  return status;
}
