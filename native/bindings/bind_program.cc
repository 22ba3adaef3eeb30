// Binding of packed weights, the thread pool, the KV cache and programs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "base/check.h"
#include "program/program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace pelton;

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntTable = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::int64_t length(const Ints& a) { return static_cast<std::int64_t>(a.shape(0)); }

nb::object run_program(Program& program, KvCache& cache, const Ints& token_ids, const Ints& cu_seqlens,
                       const Ints& context_lens, const IntTable& block_tables, const Ints& sample_rows) {
  Batch batch;
  batch.num_tokens = length(token_ids);
  batch.num_seqs = length(context_lens);
  batch.num_samples = length(sample_rows);
  batch.table_width = static_cast<std::int64_t>(block_tables.shape(1));
  check(length(cu_seqlens) == batch.num_seqs + 1, "cu_seqlens needs one entry more than there are sequences");
  check(static_cast<std::int64_t>(block_tables.shape(0)) == batch.num_seqs, "block_tables needs a row per sequence");
  batch.token_ids = token_ids.data();
  batch.cu_seqlens = cu_seqlens.data();
  batch.context_lens = context_lens.data();
  batch.block_tables = block_tables.data();
  batch.sample_rows = sample_rows.data();
  {
    const nb::gil_scoped_release release;
    program.run(batch, cache);
  }
  const std::size_t shape[2] = {static_cast<std::size_t>(batch.num_samples),
                                static_cast<std::size_t>(program.logits_width())};
  // A view into the program's arena: valid until the next run, and it keeps the program alive.
  return nb::cast(nb::ndarray<nb::numpy, const float, nb::ndim<2>>(program.logits(), 2, shape, nb::find(program)),
                  nb::rv_policy::reference);
}

std::shared_ptr<PackedWeight> pack_weight(std::uint32_t type, std::int64_t rows, std::int64_t cols, const Bytes& data,
                                          ThreadPool& pool) {
  const nb::gil_scoped_release release;
  return std::make_shared<PackedWeight>(type, rows, cols, data.data(), data.shape(0), pool);
}

nb::object dequantize(const PackedWeight& weight) {
  const auto rows = static_cast<std::size_t>(weight.rows());
  const auto cols = static_cast<std::size_t>(weight.cols());
  auto* values = new float[rows * cols];
  nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  for (std::size_t r = 0; r < rows; ++r) weight.dequantize_row(static_cast<std::int64_t>(r), values + r * cols);
  return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(values, {rows, cols}, owner));
}

KvDtype parse_kv_dtype(const std::string& name) {
  constexpr std::pair<const char*, KvDtype> kNames[] = {{"f16", KvDtype::kF16},
                                                        {"bf16", KvDtype::kBf16},
                                                        {"f32", KvDtype::kF32},
                                                        {"int8", KvDtype::kI8},
                                                        {"int4", KvDtype::kI4}};
  std::string allowed;
  for (const auto& [known, dtype] : kNames) {
    if (name == known) return dtype;
    allowed += (allowed.empty() ? "" : ", ") + std::string(known);
  }
  check(false, "kv dtype is '" + name + "'; allowed: " + allowed);
  return KvDtype::kF16;
}

Rows parse_rows(const std::string& name) {
  check(name == "tokens" || name == "samples", "rows is '" + name + "'; allowed: tokens, samples");
  return name == "tokens" ? Rows::kTokens : Rows::kSamples;
}

void bind_build(nb::class_<Program>& program) {
  program
      .def("add_buffer", [](Program& p, std::int64_t width, const std::string& rows, bool is_quantized) {
        return p.add_buffer(width, parse_rows(rows), is_quantized);
      }, "width"_a, "rows"_a, "is_quantized"_a)
      .def("embed", [](Program& p, std::shared_ptr<PackedWeight> w, int out) { p.embed(std::move(w), out); }, "weight"_a,
           "out"_a)
      .def("rms_norm", [](Program& p, int x, const Floats& weight, float eps, int out) {
        p.rms_norm(x, std::vector<float>(weight.data(), weight.data() + weight.shape(0)), eps, out);
      }, "x"_a, "weight"_a, "eps"_a, "out"_a)
      .def("quantize", &Program::quantize, "x"_a, "out"_a)
      .def("linear", [](Program& p, int in, const std::vector<std::pair<std::shared_ptr<PackedWeight>, int>>& parts,
                        bool accumulate) {
        std::vector<LinearPart> list;
        for (const auto& [weight, out] : parts) list.push_back({weight, out});
        p.linear(in, std::move(list), accumulate);
      }, "x"_a, "parts"_a, "accumulate"_a)
      .def("silu_mul", &Program::silu_mul, "gate"_a, "up"_a, "out"_a)
      .def("add", &Program::add, "a"_a, "b"_a, "out"_a)
      .def("select_rows", &Program::select_rows, "x"_a, "out"_a)
      .def("set_rope", [](Program& p, const Doubles& inv_freq, double magnitude, bool is_adjacent) {
        p.set_rope({std::vector<double>(inv_freq.data(), inv_freq.data() + inv_freq.shape(0)), magnitude, is_adjacent});
      }, "inv_freq"_a, "magnitude"_a, "is_adjacent"_a)
      .def("rope", &Program::rope, "x"_a, "head_dim"_a)
      .def("store_kv", &Program::store_kv, "k"_a, "v"_a, "layer"_a)
      .def("attend", [](Program& p, int q, int out, std::int64_t layer, std::int64_t num_heads, std::int64_t head_dim,
                        float scale, float softcap, std::int64_t window, std::vector<float> sinks) {
        p.attend(q, out, layer, head_dim, AttendParams{num_heads, scale, softcap, window}, std::move(sinks));
      }, "q"_a, "out"_a, "layer"_a, "num_heads"_a, "head_dim"_a, "scale"_a, "softcap"_a, "window"_a,
      "sinks"_a = std::vector<float>())
      .def("seal", &Program::seal, "logits"_a);
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::init<int>(), "num_threads"_a)
      .def_prop_ro("num_threads", &ThreadPool::num_threads);
  nb::class_<PackedWeight>(m, "PackedWeight")
      .def_prop_ro("type_name", [](const PackedWeight& w) { return std::string(w.format().name); })
      .def_prop_ro("rows", &PackedWeight::rows)
      .def_prop_ro("cols", &PackedWeight::cols)
      .def_prop_ro("num_bytes", &PackedWeight::num_bytes)
      .def_prop_ro("is_float", &PackedWeight::is_float)
      .def("dequantize", &dequantize);
  m.def("pack_weight", &pack_weight, "type_id"_a, "rows"_a, "cols"_a, "data"_a, "pool"_a);
  nb::class_<KvCache>(m, "KvCache")
      .def("__init__", [](KvCache* self, std::int64_t num_layers, std::int64_t num_kv_heads, std::int64_t head_dim,
                          std::int64_t num_blocks, const std::string& dtype) {
        new (self) KvCache(num_layers, num_kv_heads, head_dim, num_blocks, parse_kv_dtype(dtype));
      }, "num_layers"_a, "num_kv_heads"_a, "head_dim"_a, "num_blocks"_a, "dtype"_a)
      .def_prop_ro("num_blocks", &KvCache::num_blocks)
      .def_prop_ro("bytes_per_block", &KvCache::bytes_per_block)
      .def_prop_ro("block_data_bytes", &KvCache::block_data_bytes)
      .def("copy_block", &KvCache::copy_block, "source"_a, "target"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("get_block", [](const KvCache& cache, std::int64_t block) {
        return nb::bytes(cache.get_block(block), static_cast<std::size_t>(cache.block_data_bytes()));
      }, "block"_a)
      .def("set_block", [](KvCache& cache, std::int64_t block, const nb::bytes& data) {
        cache.set_block(block, static_cast<const std::uint8_t*>(data.data()), static_cast<std::int64_t>(data.size()));
      }, "block"_a, "data"_a);
  m.attr("KV_BLOCK_TOKENS") = kBlockTokens;
  nb::class_<Program> program(m, "Program");
  program
      .def("__init__", [](Program* self, std::shared_ptr<ThreadPool> pool, const std::string& isa) {
        new (self) Program(std::move(pool), parse_isa(isa));
      }, "pool"_a, "isa"_a)
      .def_prop_ro("num_nodes", &Program::num_nodes)
      .def_prop_ro("num_stages", &Program::num_stages)
      .def("run", &run_program, "cache"_a, "token_ids"_a, "cu_seqlens"_a, "context_lens"_a, "block_tables"_a,
           "sample_rows"_a)
      .def("timings", [](const Program& p) {
        std::vector<std::tuple<std::string, double, double, double>> rows;
        for (const NodeTiming& t : p.timings()) rows.emplace_back(t.kind, t.seconds, t.bytes, t.ops);
        return rows;
      });
  bind_build(program);
}
