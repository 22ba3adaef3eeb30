// Kernels of the avx2 target.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "isa/kernels.h"
#include "simd/avx2.h"

namespace pelton {
namespace avx2 {
#include "isa/table-inl.h"
}  // namespace avx2

const KernelTable& avx2_kernels() {
  static const KernelTable table = avx2::make_table(Isa::kAvx2);
  return table;
}

}  // namespace pelton
