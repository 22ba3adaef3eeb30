#include "base/cpu.h"

#include "base/check.h"

#if defined(PELTON_X86)
#include <cpuid.h>
#if defined(PELTON_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(PELTON_AARCH64)
#include <sys/auxv.h>
#endif

namespace pelton {

namespace {

#if defined(PELTON_AVX_VNNI) || defined(PELTON_AMX)
// What CPUID leaf 7 says (Intel SDM vol. 2A), read here because not every compiler's __builtin_cpu_supports knows these
// names. Registers that the processor does not have read as zero.
struct Leaf7 {
  unsigned eax = 0;
  unsigned edx = 0;

  explicit Leaf7(unsigned subleaf) {
    unsigned ebx = 0;
    unsigned ecx = 0;
    __get_cpuid_count(7, subleaf, &eax, &ebx, &ecx, &edx);
  }
};
#endif

#if defined(PELTON_AVX_VNNI)
bool has_avx_vnni() { return (Leaf7(1).eax & (1u << 4)) != 0; }
#endif

#if defined(PELTON_AMX)
// Whether tiles may be used: the processor has AMX-TILE and AMX-INT8, and Linux lets this process have the tiles' state
// (Documentation/arch/x86/xstate.rst), which it must ask for. A kernel that does not know of it, or a thread whose
// signal stack is too small for the state, says no.
bool ask_for_tiles() {
  constexpr unsigned kTileAndInt8 = 3u << 24;
  if ((Leaf7(0).edx & kTileAndInt8) != kTileAndInt8) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// The permission is the process's and stays, so it is asked for once.
bool has_tiles() {
  static const bool has = ask_for_tiles();
  return has;
}
#endif

#if defined(PELTON_AARCH64)
// HWCAP_ASIMDDP, bit 20 of AT_HWCAP (Linux, arch/arm64/include/uapi/asm/hwcap.h).
bool has_dot_product() { return (getauxval(AT_HWCAP) & (1ul << 20)) != 0; }
#endif

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvxVnni:
      return "avx_vnni";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
    case Isa::kNeon:
      return "neon";
  }
  return "scalar";
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas{Isa::kScalar};
#if defined(PELTON_X86)
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (has_avx2) isas.push_back(Isa::kAvx2);
#if defined(PELTON_AVX_VNNI)
  if (has_avx2 && has_avx_vnni()) isas.push_back(Isa::kAvxVnni);
#endif
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vnni");
  if (has_avx512) isas.push_back(Isa::kAvx512);
#if defined(PELTON_AMX)
  if (has_avx512 && has_tiles()) isas.push_back(Isa::kAmx);
#endif
#elif defined(PELTON_AARCH64)
  if (has_dot_product()) isas.push_back(Isa::kNeon);
#endif
  return isas;
}

Isa detect_isa() { return available_isas().back(); }

Isa parse_isa(const std::string& name) {
  std::string allowed;
  for (const Isa isa : available_isas()) {
    if (name == isa_name(isa)) return isa;
    allowed += std::string(allowed.empty() ? "" : ", ") + isa_name(isa);
  }
  check(false, "isa is '" + name + "'; available on this machine: " + allowed);
  return Isa::kScalar;
}

}  // namespace pelton
