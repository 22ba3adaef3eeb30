// Kernels of the neon target.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "isa/kernels.h"
#include "simd/neon.h"

namespace pelton {
namespace neon {
#include "isa/table-inl.h"
}  // namespace neon

const KernelTable& neon_kernels() {
  static const KernelTable table = neon::make_table(Isa::kNeon);
  return table;
}

}  // namespace pelton
