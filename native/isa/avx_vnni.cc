// Kernels of the avx_vnni target: AVX2 with the VEX encoding of vpdpbusd.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "isa/kernels.h"

namespace pelton {
namespace avx_vnni {
#include "simd/dot_vnni256.h"
#include "simd/avx2.h"

#include "isa/table-inl.h"
}  // namespace avx_vnni

const KernelTable& avx_vnni_kernels() {
  static const KernelTable table = avx_vnni::make_table(Isa::kAvxVnni);
  return table;
}

}  // namespace pelton
