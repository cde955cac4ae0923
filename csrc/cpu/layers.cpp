// All layers of a step in one call: at small batches the calls themselves cost as much as the norms and the attention.
#include <chrono>
#include <cstring>

#include "../include/kvplan_cpu.h"
#include "activation.h"

namespace {

// Adds the time since the last call to an operation's place; does nothing where nobody asked for times.
class OperationClock {
 public:
  explicit OperationClock(double* seconds) : seconds_(seconds) {
    if (seconds_ != nullptr) last_ = std::chrono::steady_clock::now();
  }

  void ended(kvplan_layer_operation operation) {
    if (seconds_ == nullptr) return;
    const auto now = std::chrono::steady_clock::now();
    seconds_[operation] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  double* seconds_;
  std::chrono::steady_clock::time_point last_;
};

bool exists(const kvplan_norm& norm) { return norm.weight != nullptr; }

int64_t element_size(int storage) { return storage == KVPLAN_BFLOAT16 ? 2 : 4; }

// One layer of a step. After an operation that failed the others do nothing.
class LayerStep {
 public:
  LayerStep(const kvplan_layers& run, const kvplan_layer& layer, OperationClock& clock, int threads)
      : run_(run), layer_(layer), place_(run.places[layer.place]), attention_(*place_.attention), hidden_(run.hidden),
        corrected_(run.corrected), clock_(clock), threads_(threads) {}

  // From the layer's input to its keys and values in the pool.
  int first_half() {
    timed(KVPLAN_QKV, [&] { return multiply(layer_.qkv, run_.normed, run_.qkv); });
    if (exists(layer_.query_norm)) timed(KVPLAN_NORMS, [&] { return normalise_queries_and_keys(); });
    if (place_.cos_sin != nullptr) timed(KVPLAN_ROPE, [&] { return rotate(); });
    timed(KVPLAN_WRITE_KV, [&] { return write_kv(); });
    return status_;
  }

  // From there to the next layer's input.
  int second_half() {
    timed(KVPLAN_ATTENTION, [&] { return attend(); });
    timed(KVPLAN_OUTPUT, [&] { return multiply(layer_.output, attention_.out, run_.delta); });
    timed(KVPLAN_NORMS, [&] { return add_and_normalise(layer_.attention_post_norm, layer_.mlp_norm); });
    if (layer_.mixture != nullptr) {
      timed(KVPLAN_MIXTURE, [&] { return run_mixture(); });
    } else {
      timed(KVPLAN_UP, [&] { return multiply(layer_.up, run_.normed, run_.inner); });
      timed(KVPLAN_DOWN, [&] { return multiply(layer_.down, run_.inner, run_.delta); });
    }
    timed(KVPLAN_NORMS, [&] { return add_and_normalise(layer_.mlp_post_norm, layer_.next_norm); });
    return status_;
  }

  // Goes on with the run's last rows, whose residual stream and queries are copied together.
  void take_last_rows() {
    const int64_t element = element_size(attention_.storage), stride_bytes = element * attention_.query_row_stride;
    const int64_t hidden_bytes = element * layer_.next_norm.width;
    const size_t query_bytes = static_cast<size_t>(element * attention_.num_heads * attention_.head_size);
    const char* all_queries = static_cast<const char*>(attention_.query);
    attention_ = *run_.last_attention;
    hidden_ = run_.last_hidden;
    corrected_ = run_.last_corrected;
    char* queries = static_cast<char*>(const_cast<void*>(attention_.query));
    for (int64_t i = 0; i < attention_.num_tokens; ++i) {
      const int64_t from = run_.last_rows[i];
      std::memcpy(static_cast<char*>(hidden_) + i * hidden_bytes,
                  static_cast<const char*>(run_.hidden) + from * hidden_bytes, static_cast<size_t>(hidden_bytes));
      std::memcpy(queries + static_cast<size_t>(i) * query_bytes, all_queries + from * stride_bytes, query_bytes);
    }
  }

 private:
  template <typename Operation>
  void timed(kvplan_layer_operation name, Operation operation) {
    if (status_ != KVPLAN_OK) return;
    status_ = operation();
    clock_.ended(name);
  }

  int multiply(kvplan_packed_linear product, const void* x, void* out) const {
    product.x = x;
    product.out = out;
    product.rows = attention_.num_tokens;
    product.corrected = corrected_;
    product.x_stride = product.inputs;
    product.out_stride = kvplan::is_gated(product.activation) ? product.outputs / 2 : product.outputs;
    for (const kvplan_packed_linear* part = product.next; part != nullptr; part = part->next)
      product.out_stride += part->outputs;
    return kvplan_multiply_packed(&product, threads_);
  }

  int normalise(const kvplan_norm& norm) const {
    return norm.bias == nullptr ? kvplan_rms_norm(&norm, threads_) : kvplan_layer_norm(&norm, threads_);
  }

  // delta = post(delta) where there is one, then hidden += delta and normed = norm(hidden).
  int add_and_normalise(kvplan_norm post, kvplan_norm norm) const {
    post.rows = norm.rows = attention_.num_tokens;
    if (exists(post)) {
      post.x = post.out = run_.delta;
      post.x_stride = post.out_stride = post.width;
      if (const int status = normalise(post); status != KVPLAN_OK) return status;
    }
    norm.delta = run_.delta;
    norm.x = hidden_;
    norm.out = run_.normed;
    norm.delta_stride = norm.x_stride = norm.out_stride = norm.width;
    return normalise(norm);
  }

  // Each of `count` heads of every token, from head `first` of qkv on, in place.
  int normalise_heads(kvplan_norm norm, int64_t first, int64_t count) const {
    norm.x = norm.out =
        static_cast<char*>(run_.qkv) + first * attention_.head_size * element_size(attention_.storage);
    norm.rows = attention_.num_tokens * count;
    norm.heads = count;
    norm.x_stride = norm.out_stride = attention_.query_row_stride;
    return normalise(norm);
  }

  int normalise_queries_and_keys() const {
    const int64_t queries = attention_.num_heads, keys = attention_.num_kv_heads;
    const int status = normalise_heads(layer_.query_norm, 0, queries);
    return status == KVPLAN_OK ? normalise_heads(layer_.key_norm, queries, keys) : status;
  }

  int rotate() const {
    return kvplan_rope(run_.qkv, attention_.query_row_stride, attention_.query_head_stride, run_.positions,
                       place_.cos_sin, place_.rope_rows, attention_.num_tokens,
                       attention_.num_heads + attention_.num_kv_heads, place_.rotary, attention_.storage, threads_);
  }

  // They lie as far behind the integers of a page in every layer of the place.
  template <typename Args>
  void move_scales(Args& args) const {
    if (args.kv_storage != KVPLAN_INT8) return;
    args.key_scales += layer_.key_offset / int64_t{sizeof(float)};
    args.value_scales += layer_.value_offset / int64_t{sizeof(float)};
  }

  int write_kv() const {
    kvplan_kv_write write = *place_.write;
    write.keys = static_cast<char*>(write.keys) + layer_.key_offset;
    write.values = static_cast<char*>(write.values) + layer_.value_offset;
    move_scales(write);
    return kvplan_write_kv(&write, threads_);
  }

  int attend() const {
    kvplan_attention attention = attention_;
    attention.keys = static_cast<const char*>(attention.keys) + layer_.key_offset;
    attention.values = static_cast<const char*>(attention.values) + layer_.value_offset;
    move_scales(attention);
    return kvplan_paged_attention(&attention, threads_);
  }

  int run_mixture() const {
    kvplan_mixture mixture = *layer_.mixture;
    mixture.x = run_.normed;
    mixture.out = run_.delta;
    mixture.x_stride = mixture.out_stride = mixture.hidden;
    mixture.rows = attention_.num_tokens;
    mixture.expert_ids = run_.expert_ids;
    mixture.expert_weights = run_.expert_weights;
    mixture.inner = run_.expert_inner;
    return kvplan_run_mixture(&mixture, threads_);
  }

  const kvplan_layers& run_;
  const kvplan_layer& layer_;
  const kvplan_layer_place& place_;
  kvplan_attention attention_;
  void* hidden_;
  const kvplan_lora_rows* corrected_;
  OperationClock& clock_;
  int threads_;
  int status_ = KVPLAN_OK;
};

}  // namespace

int kvplan_run_layers(const kvplan_layers* run, int threads) {
  OperationClock clock(run->operation_seconds);
  for (int64_t i = 0; i < run->num_layers; ++i) {
    LayerStep step(*run, run->layers[i], clock, threads);
    int status = step.first_half();
    if (status != KVPLAN_OK) return status;
    if (run->last_attention != nullptr && i + 1 == run->num_layers) {
      if (run->last_attention->num_tokens == 0) return KVPLAN_OK;
      step.take_last_rows();
    }
    status = step.second_half();
    if (status != KVPLAN_OK) return status;
  }
  return KVPLAN_OK;
}
