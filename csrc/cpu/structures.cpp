// The sizes of the interface's structs, for callers that declare them in another language.
#include <cstring>

#include "../include/kvplan_cpu.h"
#include "../include/kvplan_mamba.h"
#include "../include/kvplan_states.h"

namespace {

struct Structure {
  const char* name;
  int64_t bytes;
};

#define KVPLAN_STRUCTURE(name) {#name, static_cast<int64_t>(sizeof(name))}
constexpr Structure kStructures[] = {
    KVPLAN_STRUCTURE(kvplan_attention),
    KVPLAN_STRUCTURE(kvplan_choice),
    KVPLAN_STRUCTURE(kvplan_kv_write),
    KVPLAN_STRUCTURE(kvplan_norm),
    KVPLAN_STRUCTURE(kvplan_weight_format),
    KVPLAN_STRUCTURE(kvplan_packed_linear),
    KVPLAN_STRUCTURE(kvplan_head_products),
    KVPLAN_STRUCTURE(kvplan_router),
    KVPLAN_STRUCTURE(kvplan_experts),
    KVPLAN_STRUCTURE(kvplan_mixture),
    KVPLAN_STRUCTURE(kvplan_layer),
    KVPLAN_STRUCTURE(kvplan_layer_place),
    KVPLAN_STRUCTURE(kvplan_layers),
    KVPLAN_STRUCTURE(kvplan_lora_slots),
    KVPLAN_STRUCTURE(kvplan_lora_rows),
    KVPLAN_STRUCTURE(kvplan_mamba1),
    KVPLAN_STRUCTURE(kvplan_mamba2),
    KVPLAN_STRUCTURE(kvplan_gated_rows),
    KVPLAN_STRUCTURE(kvplan_state),
    KVPLAN_STRUCTURE(kvplan_convolution),
    KVPLAN_STRUCTURE(kvplan_delta_rule),
};
#undef KVPLAN_STRUCTURE

}  // namespace

int64_t kvplan_structure_bytes(const char* name) {
  for (const Structure& structure : kStructures) {
    if (std::strcmp(structure.name, name) == 0) return structure.bytes;
  }
  return 0;
}
