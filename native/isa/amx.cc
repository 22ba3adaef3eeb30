// Kernels of the amx target: those of avx512, and linears of many rows on tiles.
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "isa/kernels.h"

namespace pelton {

const KernelTable& avx512_kernels() noexcept;

namespace amx {
#include "simd/avx512.h"
#include "simd/f32x16.h"

#include "ops/linear/linear-inl.h"
#include "ops/linear/linear_amx-inl.h"
#include "probe/probe_amx-inl.h"

template <int kFormat>
void use_tiles(KernelTable& table) {
  table.linear[kFormat] = &TiledLinear<kFormat>::run;
}

inline KernelTable make_table() noexcept {
  KernelTable table = avx512_kernels();
  table.isa = Isa::kAmx;
  // Weights are read more often than the tiles can wait for, and these processors have 2 MB of second-level cache.
  table.linear_chunk_bytes = 512 * 1024;
  // Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K: formats with a scale per 32 inputs.
  use_tiles<3>(table);
  use_tiles<4>(table);
  use_tiles<5>(table);
  use_tiles<6>(table);
  use_tiles<7>(table);
  use_tiles<10>(table);
  use_tiles<11>(table);
  table.probe.run_int8 = &run_int8;
  table.probe.int8_ops_per_round = kInt8OpsPerRound;
  return table;
}
}  // namespace amx

const KernelTable& amx_kernels() {
  static const KernelTable table = amx::make_table();
  return table;
}

}  // namespace pelton
