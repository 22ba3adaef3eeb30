// Kernels of the avx512 target.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "isa/kernels.h"

namespace pelton {
namespace avx512 {
#include "simd/avx512.h"

#include "isa/table-inl.h"
}  // namespace avx512

const KernelTable& avx512_kernels() noexcept {
  static const KernelTable table = avx512::make_table(Isa::kAvx512);
  return table;
}

}  // namespace pelton
