// Products with packed weights and attention in AMX's tiles against plain loops: the tiles are plain loops too (KVPLAN_TWINS).
#include "cross_check_attention.h"
#include "cross_check_products.h"
#include "cross_check_quantised.h"
#include "products/packed/packed_amx.h"
#include "products/packed/packed_product.h"

#if !KVPLAN_AMX
#error "this program is about tiles"
#endif

int main() {
  if (!kvplan_use_tiles(1)) return std::puts("tiles give something else than loops"), 1;
  threads = 2;
  for (const bool by_tiles : {true, false}) {
    kvplan::use_tiles(by_tiles);
    // whole tiles; a rest of inputs; an odd number of them; several steps with and without a rest; gates; a lone input
    for (const Product& p : {Product{64, 128, KVPLAN_NO_ACTIVATION, KVPLAN_BFLOAT16},
                             Product{70, 64, KVPLAN_GELU_TANH, KVPLAN_BFLOAT16},
                             Product{77, 150, KVPLAN_NO_ACTIVATION, KVPLAN_BFLOAT16},
                             Product{1024, 40, KVPLAN_NO_ACTIVATION, KVPLAN_BFLOAT16},
                             Product{1030, 70, KVPLAN_NO_ACTIVATION, KVPLAN_BFLOAT16},
                             Product{576, 256, KVPLAN_SILU_AND_MUL, KVPLAN_BFLOAT16},
                             Product{1, 1, KVPLAN_NO_ACTIVATION, KVPLAN_BFLOAT16}})
      check_product(p, by_tiles ? "product in tiles" : "product in dot products of pairs");
    check_attentions_in_tiles();
    for (int bits : {4, 6, 8})
      for (bool rounds : {false, true}) check_quantised(bits, rounds, KVPLAN_BFLOAT16);
  }
  std::printf("%d checks, %d wrong\n", checks, failures);
  return failures > 0;
}
