// Every kernel of every instruction set this machine can run, bit for bit against scalar code, without Python: for
// emulators, cross-compiled builds and sanitizers. Exits 0 if every check holds.
//
//   kernel_test [ISAS]     ISAS: fail unless the tables found are these, for example "scalar, avx2"
#include "tests/kernel_test.h"

#include <cstdio>
#include <cstdlib>

namespace pelton {

#if defined(PELTON_AVX_VNNI)
// tests/avx_vnni_evex.cc: the avx_vnni kernels in AVX-512's encoding.
const KernelTable& avx_vnni_evex_kernels();
#endif

namespace test {

void require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "kernel_test: %s\n", what.c_str());
  std::exit(1);
}

namespace {

std::vector<Target> list_targets() {
  std::vector<Target> targets;
  for (const Isa isa : available_isas()) {
    const KernelTable& kernels = get_kernels(isa);
    require(kernels.isa == isa, std::string("the table of ") + isa_name(isa) + " is another ISA's");
    targets.push_back({isa_name(isa), &kernels});
#if defined(PELTON_AVX_VNNI)
    if (isa == Isa::kAvx512) targets.push_back({"avx_vnni (EVEX)", &avx_vnni_evex_kernels()});
#endif
  }
  return targets;
}

}  // namespace
}  // namespace test
}  // namespace pelton

int main(int argc, char** argv) {
  using namespace pelton;
  const KernelTable& scalar = get_kernels(Isa::kScalar);
  const std::vector<test::Target> targets = test::list_targets();
  std::string names;
  for (const test::Target& target : targets) names += (names.empty() ? "" : ", ") + target.name;
  test::require(argc < 2 || names == argv[1], "found the tables of " + names);
  std::printf("kernel_test: %s ...\n", names.c_str());
  std::fflush(stdout);
  test::test_rowwise(scalar, targets);
  test::test_attention(scalar, targets);
  test::test_linear(scalar, targets);
  std::printf("kernel_test: ok\n");
  return 0;
}
