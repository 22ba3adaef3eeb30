#include "isa/kernels.h"

namespace pelton {

const KernelTable& scalar_kernels();
#if defined(PELTON_X86)
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels() noexcept;
#if defined(PELTON_AVX_VNNI)
const KernelTable& avx_vnni_kernels();
#endif
#if defined(PELTON_AMX)
const KernelTable& amx_kernels();
#endif
#elif defined(PELTON_AARCH64)
const KernelTable& neon_kernels();
#endif

const KernelTable& get_kernels(Isa isa) {
  switch (isa) {
#if defined(PELTON_X86)
#if defined(PELTON_AMX)
    case Isa::kAmx:
      return amx_kernels();
#endif
    case Isa::kAvx512:
      return avx512_kernels();
#if defined(PELTON_AVX_VNNI)
    case Isa::kAvxVnni:
      return avx_vnni_kernels();
#endif
    case Isa::kAvx2:
      return avx2_kernels();
#elif defined(PELTON_AARCH64)
    case Isa::kNeon:
      return neon_kernels();
#endif
    default:
      return scalar_kernels();
  }
}

}  // namespace pelton
