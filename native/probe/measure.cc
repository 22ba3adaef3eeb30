#include "probe/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/aligned.h"
#include "base/check.h"
#include "isa/kernels.h"

namespace pelton {

namespace {

// More items than threads: a thread that is kept from running costs one item's time.
constexpr std::int64_t kItemsPerThread = 8;
constexpr double kItemSeconds = 0.5e-3;

template <typename Work>
double time_s(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What the loops return ends here, so that the compiler must run them.
void keep(float value) {
  [[maybe_unused]] volatile float kept = value;
}

// Runs `rounds` on every item of a region, with as many rounds as take about kItemSeconds.
template <typename Rounds>
std::vector<double> time_rounds(ThreadPool& pool, double ops_per_round, int num_repeats, const Rounds& rounds) {
  std::int64_t num_rounds = 16;
  double elapsed = time_s([&] { keep(rounds(num_rounds)); });
  while (elapsed < kItemSeconds) {
    num_rounds *= 2;
    elapsed = time_s([&] { keep(rounds(num_rounds)); });
  }
  const std::int64_t num_items = kItemsPerThread * pool.num_threads();
  const auto region = [&] { pool.for_each(num_items, [&](std::int64_t) { keep(rounds(num_rounds)); }); };
  region();
  std::vector<double> rates;
  for (int i = 0; i < num_repeats; ++i) {
    rates.push_back(ops_per_round * static_cast<double>(num_rounds * num_items) / time_s(region));
  }
  return rates;
}

}  // namespace

std::vector<double> measure_read(ThreadPool& pool, Isa isa, std::size_t num_bytes, int num_streams, int num_repeats) {
  check(num_streams == 1 || num_streams == 2 || num_streams == 4 || num_streams == 8,
        "num_streams must be 1, 2, 4 or 8");
  const std::size_t num_items = static_cast<std::size_t>(kItemsPerThread * pool.num_threads());
  const std::size_t step = kProbeReadBytes * static_cast<std::size_t>(num_streams);
  const std::size_t item_bytes = num_bytes / num_items / step * step;
  check(item_bytes > 0, "num_bytes is too small for the number of threads");
  AlignedBuffer buffer(item_bytes * num_items, /*huge_pages=*/true);
  const auto for_each_item = [&](const auto& work) {
    pool.for_each(static_cast<std::int64_t>(num_items),
                  [&](std::int64_t item) { work(buffer.data() + static_cast<std::size_t>(item) * item_bytes); });
  };
  // Pages that were never written are all one page of zeros.
  for_each_item([&](std::uint8_t* p) { std::memset(p, 0, item_bytes); });
  const ProbeKernels& probe = get_kernels(isa).probe;
  std::vector<double> rates;
  for (int i = 0; i < num_repeats; ++i) {
    const double elapsed =
        time_s([&] { for_each_item([&](const std::uint8_t* p) { keep(probe.read_memory(p, item_bytes, num_streams)); }); });
    rates.push_back(static_cast<double>(buffer.size()) / elapsed);
  }
  return rates;
}

std::vector<double> measure_ops(ThreadPool& pool, Isa isa, const std::string& kind, int num_repeats) {
  const ProbeKernels& probe = get_kernels(isa).probe;
  if (kind == "f32") return time_rounds(pool, probe.f32_ops_per_round, num_repeats, probe.run_f32);
  if (kind == "int8") return time_rounds(pool, probe.int8_ops_per_round, num_repeats, probe.run_int8);
  check(kind == "bf16", "kind is '" + kind + "'; allowed: f32, int8, bf16");
  if ((isa != Isa::kAvx512 && isa != Isa::kAmx) || !has_bf16_dot()) return {};
  return time_rounds(pool, bf16_ops_per_round(), num_repeats, run_bf16);
}

}  // namespace pelton
