// The scores of a router and the choice among them, in float32.
#include "routing.h"

#include <cmath>

#include "../simd_math.h"

namespace kvplan {
namespace {

constexpr float kNothing = -__builtin_inff();

int64_t best_of(const float* values, int64_t count) {
  int64_t best = 0;
  for (int64_t i = 1; i < count; ++i)
    if (values[i] > values[best]) best = i;
  return best;
}

template <class Function>
void map(float* values, int64_t count, const Function& function) {
  for (int64_t i = 0; i < count; i += kLanes) store(values + i, function(load(values + i)));
}

// values = softmax(values); those at minus infinity become 0.
void softmax(float* values, int64_t count) {
  const float most = values[best_of(values, count)];
  map(values, count, [&](Floats v) { return exp(v - most); });
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) sum += values[i];
  map(values, count, [&](Floats v) { return v / sum; });
}

float group_score(const float* choice, int64_t size, int scoring) {
  float best = kNothing, second = kNothing;
  for (int64_t i = 0; i < size; ++i) {
    const float value = choice[i];
    if (value > best) {
      second = best;
      best = value;
    } else if (value > second) {
      second = value;
    }
  }
  return scoring == KVPLAN_GROUP_MAX || size == 1 ? best : best + second;
}

// Experts outside the best groups can no longer be chosen.
void leave_groups_out(const kvplan_router& router, float* choice) {
  const int64_t size = router.num_experts / router.num_groups;
  float scores[KVPLAN_MOST_GROUPS];
  bool stays[KVPLAN_MOST_GROUPS] = {};
  for (int64_t g = 0; g < router.num_groups; ++g) scores[g] = group_score(choice + g * size, size, router.group_scoring);
  for (int64_t i = 0; i < router.top_groups; ++i) {
    const int64_t best = best_of(scores, router.num_groups);
    stays[best] = true;
    scores[best] = kNothing;
  }
  for (int64_t g = 0; g < router.num_groups; ++g)
    for (int64_t i = 0; !stays[g] && i < size; ++i) choice[g * size + i] = kNothing;
}

// The best top_k of `choice`, of which each is taken out.
void take_best(const kvplan_router& router, float* choice, int32_t* ids) {
  for (int64_t i = 0; i < router.top_k; ++i) {
    const int64_t best = best_of(choice, router.num_experts);
    ids[i] = static_cast<int32_t>(best);
    choice[best] = kNothing;
  }
}

void weigh(const kvplan_router& router, float* weights) {
  float sum = 0.0f;
  for (int64_t i = 0; i < router.top_k; ++i) sum += weights[i];
  const float divisor = router.normalised ? sum + 1e-20f : 1.0f;  // scores may all have become 0
  for (int64_t i = 0; i < router.top_k; ++i) weights[i] = weights[i] / divisor * router.scale;
}

// The exponential of one number, as the vectors have it.
float exp_of(float value) {
  return exp(splat(value))[0];
}

void softmax_of_top(const kvplan_router& router, const float* logits, const int32_t* ids, float* weights) {
  float sum = 0.0f;
  for (int64_t i = 0; i < router.top_k; ++i) {
    weights[i] = exp_of(logits[ids[i]] - logits[ids[0]]);
    sum += weights[i];
  }
  for (int64_t i = 0; i < router.top_k; ++i) weights[i] /= sum;
}

// Phi-MoE's (Liu et al., GRIN, 2024): a chosen expert's weight is its share among those whose logits come close to it.
void sparse_mixer(const kvplan_router& router, const float* logits, float* left, int32_t* ids, float* weights) {
  for (int64_t i = 0; i < router.num_experts; ++i) left[i] = logits[i];
  for (int64_t i = 0; i < router.top_k; ++i) {
    const int64_t best = best_of(left, router.num_experts);
    const float most = left[best];
    float sum = 0.0f;
    for (int64_t e = 0; e < router.num_experts; ++e) {
      const float size = std::fabs(logits[e]);
      const bool is_close = !((most - logits[e]) / (size > most ? size : most) > 2.0f * router.jitter);
      if (is_close && left[e] != kNothing) sum += exp_of(left[e] - most);
    }
    ids[i] = static_cast<int32_t>(best);
    weights[i] = 1.0f / sum;
    left[best] = kNothing;
  }
}

}  // namespace

void choose_experts(const kvplan_router& router, float* logits, float* choice, int32_t* ids, float* weights) {
  if (router.scoring == KVPLAN_SPARSE_MIXER) {
    sparse_mixer(router, logits, choice, ids, weights);
    return weigh(router, weights);
  }
  if (router.scoring == KVPLAN_SOFTMAX) softmax(logits, router.num_experts);
  if (router.scoring == KVPLAN_SIGMOID) map(logits, router.num_experts, [](Floats v) { return sigmoid(v); });
  for (int64_t i = 0; i < router.num_experts; ++i)
    choice[i] = logits[i] + (router.correction == nullptr ? 0.0f : router.correction[i]);
  if (router.num_groups > 1) leave_groups_out(router, choice);
  take_best(router, choice, ids);
  if (router.scoring == KVPLAN_SOFTMAX_OF_TOP) {
    softmax_of_top(router, logits, ids, weights);
  } else {
    for (int64_t i = 0; i < router.top_k; ++i) weights[i] = logits[ids[i]];
  }
  weigh(router, weights);
}

}  // namespace kvplan
