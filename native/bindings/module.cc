// The extension module pelton._native. Glue only: arguments in, arrays out, the GIL released around work.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/cpu.h"

namespace nb = nanobind;

void bind_program(nb::module_& m);

namespace pelton {
void bind_probe(nb::module_& m);
void bind_sampling(nb::module_& m);
}

NB_MODULE(_native, m) {
  m.doc() = "Pelton's native core: packed weights, programs, the KV cache and sampling.";
  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const pelton::Isa isa : pelton::available_isas()) names.emplace_back(pelton::isa_name(isa));
    return names;
  });
  m.def("detect_isa", [] { return std::string(pelton::isa_name(pelton::detect_isa())); });
  bind_program(m);
  pelton::bind_probe(m);
  pelton::bind_sampling(m);
}
