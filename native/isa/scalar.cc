// Kernels of the scalar target.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "isa/kernels.h"
#include "simd/scalar.h"

namespace pelton {
namespace scalar {
#include "isa/table-inl.h"
}  // namespace scalar

const KernelTable& scalar_kernels() {
  static const KernelTable table = scalar::make_table(Isa::kScalar);
  return table;
}

}  // namespace pelton
