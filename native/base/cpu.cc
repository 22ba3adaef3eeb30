#include "base/cpu.h"

#include "base/check.h"

namespace pelton {

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "scalar";
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas{Isa::kScalar};
#ifdef PELTON_X86
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (has_avx2) isas.push_back(Isa::kAvx2);
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vnni");
  if (has_avx512) isas.push_back(Isa::kAvx512);
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
