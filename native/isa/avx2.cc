// Kernels of the avx2 target.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "isa/kernels.h"

namespace pelton {
namespace avx2 {
#include "simd/dot_maddubs.h"
#include "simd/avx2.h"

#include "isa/table-inl.h"
}  // namespace avx2

const KernelTable& avx2_kernels() {
  static const KernelTable table = avx2::make_table(Isa::kAvx2);
  return table;
}

}  // namespace pelton
