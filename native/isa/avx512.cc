// Kernels of the avx512 target.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "isa/kernels.h"
#include "simd/avx512.h"

namespace pelton {
namespace avx512 {
#include "isa/table-inl.h"
}  // namespace avx512

const KernelTable& avx512_kernels() {
  static const KernelTable table = avx512::make_table(Isa::kAvx512);
  return table;
}

}  // namespace pelton
