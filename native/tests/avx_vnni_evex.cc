// The avx_vnni kernels compiled with AVX-512 VNNI and VL: the same instructions in another encoding, so that the code
// is tested on machines that lack AVX-VNNI proper.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "isa/kernels.h"

namespace pelton {
namespace avx_vnni_evex {
#include "simd/dot_vnni256.h"
#include "simd/avx2.h"

#include "isa/table-inl.h"
}  // namespace avx_vnni_evex

const KernelTable& avx_vnni_evex_kernels() {
  static const KernelTable table = avx_vnni_evex::make_table(Isa::kAvxVnni);
  return table;
}

}  // namespace pelton
