// store_kv, attend_span, merge_spans and finish_attend over cache types, head sizes, groups and context lengths.
#include <algorithm>
#include <bit>
#include <cmath>

#include "program/kv_cache.h"
#include "tests/kernel_test.h"

namespace pelton::test {

namespace {

constexpr KvDtype kDtypes[] = {KvDtype::kF16, KvDtype::kF32, KvDtype::kBf16, KvDtype::kI8, KvDtype::kI4};
constexpr const char* kDtypeNames[] = {"f16", "f32", "bf16", "int8", "int4"};
// How far a value may lie from exact attention over unrounded keys and values of about 1.5.
constexpr double kTolerances[] = {1e-2, 1e-4, 5e-2, 1e-1, 1.0};

struct Case {
  std::int64_t head_dim, num_kv_heads, group, context, num_tokens, window;
  float softcap;
};

constexpr Case kCases[] = {
    {64, 2, 3, 40, 1, 0, 0.0F},    {64, 1, 3, 600, 20, 0, 0.0F},
    {64, 1, 4, 515, 7, 100, 0.0F}, {20, 3, 1, 33, 33, 0, 0.0F},
    {80, 1, 7, 270, 5, 0, 30.0F},  {128, 1, 2, 300, 2, 0, 0.0F},
    {5, 2, 1, 17, 3, 4, 0.0F},     {96, 1, 1, 1, 1, 0, 0.0F},
};

std::string describe(const Case& c, std::size_t dtype) {
  return std::string(kDtypeNames[dtype]) + ", head size " + std::to_string(c.head_dim) + ", group " +
         std::to_string(c.group) + ", context " + std::to_string(c.context) + ", " + std::to_string(c.num_tokens) +
         " tokens";
}

struct Inputs {
  Inputs(const Case& c, Random& random) {
    const std::int64_t width = c.num_kv_heads * c.head_dim;
    k = random.floats(static_cast<std::size_t>(c.context * width), 1.5F);
    v = random.floats(static_cast<std::size_t>(c.context * width), 1.5F);
    q = random.floats(static_cast<std::size_t>(c.num_tokens * c.group * width), 1.5F);
    const auto num_blocks = static_cast<std::int32_t>((c.context + kBlockTokens - 1) / kBlockTokens);
    for (std::int32_t b = num_blocks - 1; b >= 0; --b) table.push_back(b);  // blocks lie in no order
  }
  std::vector<float> k, v, q;
  std::vector<std::int32_t> table;
};

void fill_cache(const KernelTable& kernels, const Case& c, const Inputs& in, const KvLayer& kv) {
  for (std::int64_t t = 0; t < c.context; ++t) {
    const std::int64_t block = in.table[static_cast<std::size_t>(t / kBlockTokens)];
    const std::int64_t before = t < kBlockTokens ? -1 : in.table[static_cast<std::size_t>(t / kBlockTokens - 1)];
    const std::int64_t at = t * c.num_kv_heads * c.head_dim;
    kernels.store_kv(kv, {block, t % kBlockTokens, before}, 0, c.num_kv_heads, in.k.data() + at, in.v.data() + at);
  }
}

// The last num_tokens tokens of the context attend to it, all heads: [num_tokens, num_kv_heads * group, head_dim].
std::vector<float> attend(const KernelTable& kernels, const Case& c, const Inputs& in, const KvLayer& kv) {
  const std::int64_t rows = c.num_tokens * c.group;
  const std::int64_t width = c.num_kv_heads * c.group * c.head_dim;
  AttendParams params;
  params.num_heads = c.num_kv_heads * c.group;
  params.scale = 0.3F;
  params.softcap = c.softcap;
  params.window = c.window;
  std::vector<float> out(static_cast<std::size_t>(c.num_tokens * width));
  std::vector<float> scratch(static_cast<std::size_t>(attend_scratch_floats(rows, kv)));
  std::vector<float> states(static_cast<std::size_t>(2 * rows * (kv.value_dim + 2)));
  const auto state = [&](std::int64_t i) -> SpanState {
    float* p = states.data() + i * rows * (kv.value_dim + 2);
    return {p, p + rows, p + 2 * rows};
  };
  for (std::int64_t h = 0; h < c.num_kv_heads; ++h) {
    const std::int64_t first = h * c.group * c.head_dim;
    const std::int64_t position = c.context - c.num_tokens;
    const QueryBlock query{in.q.data() + first, width, c.num_tokens, c.group, position, h, in.table.data(), nullptr};
    const std::int64_t first_span = params.first_seen(position) / kSpanTokens;
    kernels.prepare_queries(kv, params, query, scratch.data());
    for (std::int64_t span = first_span; span * kSpanTokens < c.context; ++span) {
      kernels.attend_span(kv, params, query, span, scratch.data(), state(span == first_span ? 0 : 1));
      if (span > first_span) kernels.merge_spans(rows, kv.value_dim, state(0), state(1));
    }
    kernels.finish_attend(kv, query, state(0), out.data() + first);
  }
  return out;
}

// One query head in double: softmax over the visible keys.
void check_row(const Case& c, const Inputs& in, std::int64_t token, std::int64_t head, const float* out,
               double tolerance) {
  const std::int64_t position = c.context - c.num_tokens + token;
  const std::int64_t begin = c.window > 0 ? std::max<std::int64_t>(0, position - c.window + 1) : 0;
  const float* q = in.q.data() + (token * c.num_kv_heads * c.group + head) * c.head_dim;
  std::vector<double> values(static_cast<std::size_t>(c.head_dim));
  double sum = 0.0;
  for (std::int64_t j = begin; j <= position; ++j) {
    const std::int64_t at = (j * c.num_kv_heads + head / c.group) * c.head_dim;
    double score = 0.0;
    for (std::int64_t d = 0; d < c.head_dim; ++d) {
      score += static_cast<double>(q[d]) * static_cast<double>(in.k[static_cast<std::size_t>(at + d)]);
    }
    score *= static_cast<double>(0.3F);
    const auto cap = static_cast<double>(c.softcap);
    const double weight = std::exp(c.softcap != 0.0F ? cap * std::tanh(score / cap) : score);
    sum += weight;
    for (std::size_t d = 0; d < values.size(); ++d) {
      values[d] += weight * static_cast<double>(in.v[static_cast<std::size_t>(at) + d]);
    }
  }
  for (std::size_t d = 0; d < values.size(); ++d) {
    const double error = std::abs(static_cast<double>(out[d]) - values[d] / sum);
    require(error <= tolerance, "attention: a value is off by " + std::to_string(error));
  }
}

void test_case(const KernelTable& scalar, const std::vector<Target>& targets, const Case& c, std::size_t dtype,
               Random& random) {
  const Inputs in(c, random);
  const auto num_blocks = static_cast<std::int64_t>(in.table.size());
  const KvCache cache(1, c.num_kv_heads, c.head_dim, num_blocks, kDtypes[dtype]);
  const KvLayer kv = cache.layer(0);
  fill_cache(scalar, c, in, kv);
  const std::vector<float> expected = attend(scalar, c, in, kv);
  const double tolerance = kTolerances[dtype];
  const std::int64_t num_heads = c.num_kv_heads * c.group;
  for (std::int64_t row = 0; row < c.num_tokens * num_heads; ++row) {
    check_row(c, in, row / num_heads, row % num_heads, expected.data() + row * c.head_dim, tolerance);
  }
  for (const Target& target : targets) {
    const std::string what = target.name + " " + describe(c, dtype);
    const KvCache other(1, c.num_kv_heads, c.head_dim, num_blocks, kDtypes[dtype]);
    fill_cache(*target.kernels, c, in, other.layer(0));
    const auto bytes = static_cast<std::size_t>(num_blocks * kv.block_bytes);
    require_same_bits(other.layer(0).base, kv.base, bytes, "store_kv " + what);
    const std::vector<float> actual = attend(*target.kernels, c, in, kv);
    require_same_bits(actual.data(), expected.data(), expected.size(), "attention " + what);
  }
}

// Numbers that float16 rounds, overflows or cannot hold as normals.
void test_store_of_special_numbers(const KernelTable& scalar, const Target& target, KvDtype dtype, Random& random) {
  constexpr std::int64_t kDim = 4096;
  std::vector<float> k(kDim);
  for (float& x : k) {
    // 2^-29 to 2^13, and 2^17.
    const auto drawn = static_cast<std::uint32_t>(random.next() % 44 + 98);
    const std::uint32_t exponent = drawn > 140 ? 144 : drawn;
    // Few low bits, so that halfway cases are common.
    const std::uint32_t mantissa = static_cast<std::uint32_t>(random.next()) & 0x7ff000u;
    x = std::bit_cast<float>(exponent << 23 | mantissa) * (random.next() % 2 != 0 ? -1.0F : 1.0F);
  }
  k[0] = 65519.0F;
  k[1] = 65520.0F;
  k[2] = INFINITY;
  k[3] = -0.0F;
  const KvCache expected(1, 1, kDim, 1, dtype);
  const KvCache actual(1, 1, kDim, 1, dtype);
  const KvSlot slot{0, 3, -1};
  scalar.store_kv(expected.layer(0), slot, 0, 1, k.data(), k.data());
  target.kernels->store_kv(actual.layer(0), slot, 0, 1, k.data(), k.data());
  const auto bytes = static_cast<std::size_t>(expected.layer(0).block_bytes);
  require_same_bits(actual.layer(0).base, expected.layer(0).base, bytes, "store_kv of special numbers " + target.name);
}

}  // namespace

void test_attention(const KernelTable& scalar, const std::vector<Target>& targets) {
  Random random(3);
  for (std::size_t dtype = 0; dtype < std::size(kDtypes); ++dtype) {
    for (const Case& c : kCases) test_case(scalar, targets, c, dtype, random);
    for (const Target& target : targets) test_store_of_special_numbers(scalar, target, kDtypes[dtype], random);
  }
}

}  // namespace pelton::test
