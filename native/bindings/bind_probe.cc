// Binding of the probes that measure the machine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "probe/measure.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pelton {

void bind_probe(nb::module_& m) {
  m.def("measure_read", [](ThreadPool& pool, const std::string& isa, std::size_t num_bytes, int num_streams,
                           int num_repeats) {
    const nb::gil_scoped_release release;
    return measure_read(pool, parse_isa(isa), num_bytes, num_streams, num_repeats);
  }, "pool"_a, "isa"_a, "num_bytes"_a, "num_streams"_a, "num_repeats"_a);
  m.def("measure_ops", [](ThreadPool& pool, const std::string& isa, const std::string& kind, int num_repeats) {
    const nb::gil_scoped_release release;
    return measure_ops(pool, parse_isa(isa), kind, num_repeats);
  }, "pool"_a, "isa"_a, "kind"_a, "num_repeats"_a);
  m.def("measure_stage_handoff", [](const std::shared_ptr<ThreadPool>& pool, const std::string& isa, int num_stages,
                                    int num_repeats) {
    const nb::gil_scoped_release release;
    return measure_stage_handoff(pool, parse_isa(isa), num_stages, num_repeats);
  }, "pool"_a, "isa"_a, "num_stages"_a, "num_repeats"_a);
}

}  // namespace pelton
