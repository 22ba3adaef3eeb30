#include "isa/kernels.h"

namespace pelton {

const KernelTable& scalar_kernels();
#ifdef PELTON_X86
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();
#endif

const KernelTable& get_kernels(Isa isa) {
  switch (isa) {
#ifdef PELTON_X86
    case Isa::kAvx512:
      return avx512_kernels();
    case Isa::kAvx2:
      return avx2_kernels();
#else
    case Isa::kAvx512:
    case Isa::kAvx2:
#endif
    case Isa::kScalar:
      break;
  }
  return scalar_kernels();
}

}  // namespace pelton
