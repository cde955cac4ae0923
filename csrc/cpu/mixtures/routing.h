// Which experts each row takes.
#pragma once

#include "../../include/kvplan_cpu.h"

namespace kvplan {

// One row's choice: ids[top_k], best first, and their weights. logits [num_experts, filled up to whole vectors] are
// overwritten; choice is memory of the same size.
void choose_experts(const kvplan_router& router, float* logits, float* choice, int32_t* ids, float* weights);

}  // namespace kvplan
