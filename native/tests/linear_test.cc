// linear and quantize: all weight formats x ragged shapes x 1 to 65 tokens.
#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "base/half.h"
#include "tests/kernel_test.h"

namespace pelton::test {

namespace {

// From the sixth on: some tokens of a block of 16, three whole blocks, which amx takes as tiles, and one token.
constexpr std::int64_t kMaxTokens = 65;

struct Shape {
  std::int64_t rows, cols;
};

// Where a block keeps float16 numbers (ggml-common.h): those must be finite.
std::vector<int> half_offsets(BlockType type) {
  switch (type) {
    case BlockType::kQ4_1:
    case BlockType::kQ5_1:
    case BlockType::kQ4_K:
    case BlockType::kQ5_K:
      return {0, 2};
    case BlockType::kQ2_K:
      return {80, 82};
    case BlockType::kQ3_K:
      return {108};
    case BlockType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

// Raw blocks of a matrix: every bit pattern of codes occurs, or with `is_extreme` only the highest codes.
std::vector<std::uint8_t> make_blocks(Random& random, const PackedFormat& format, Shape shape, bool is_extreme) {
  const auto num_elements = static_cast<std::size_t>(shape.rows * shape.cols);
  const auto block_bytes = static_cast<std::size_t>(format.block_bytes);
  std::vector<std::uint8_t> data(num_elements / static_cast<std::size_t>(format.block_size) * block_bytes);
  const auto put_half = [&](std::size_t at, float value) {
    const std::uint16_t half = f32_to_f16(value);
    std::memcpy(&data[at], &half, 2);
  };
  if (format.group == 0) {
    for (std::size_t i = 0; i < num_elements; ++i) {
      const float value = random.unit() * (i % 97 == 0 ? 1e-5F : 1.0F);  // subnormal halves as well
      const auto bits = std::bit_cast<std::uint32_t>(value);
      if (format.type == BlockType::kF32) std::memcpy(&data[i * 4], &bits, 4);
      if (format.type == BlockType::kF16) put_half(i * 2, value);
      if (format.type == BlockType::kBF16) std::memcpy(&data[i * 2], reinterpret_cast<const char*>(&bits) + 2, 2);
    }
    return data;
  }
  for (std::uint8_t& byte : data) byte = is_extreme ? 0xff : static_cast<std::uint8_t>(random.next() >> 56);
  if (is_extreme && format.type == BlockType::kQ8_0) std::memset(data.data(), 0x80, data.size());  // signed: -128
  for (std::size_t block = 0; block < data.size(); block += block_bytes) {
    for (const int offset : half_offsets(format.type)) {
      put_half(block + static_cast<std::size_t>(offset), random.unit() * 0.1F);
    }
  }
  return data;
}

std::vector<Shape> shapes_of(const PackedFormat& format) {
  if (format.group == 0) return {{1, 1}, {5, 7}, {16, 33}, {17, 48}, {50, 100}};
  const std::int64_t unit = format.block_size;
  return {{1, unit}, {15, 2 * unit}, {17, 3 * unit}, {42, unit}};
}

struct Acts {
  Acts(const KernelTable& kernels, const std::vector<float>& x, std::int64_t cols, std::int64_t num_tokens = kMaxTokens)
      : memory(quant_acts_bytes(num_tokens, cols)), quant(place_quant_acts(memory.data(), num_tokens, cols)) {
    for (std::int64_t t = 0; t < num_tokens; ++t) kernels.quantize(x.data() + t * cols, t, quant);
  }
  AlignedBuffer memory;
  QuantActs quant;
};

// y[t, n] of the first token against a sum in double.
void check_values(const PackedWeight& weight, const float* x, const QuantActs* quant, const float* y,
                  const std::string& what) {
  std::vector<float> row(static_cast<std::size_t>(weight.cols()));
  for (std::int64_t n = 0; n < weight.rows(); ++n) {
    weight.dequantize_row(n, row.data());
    double sum = 0.0;
    double magnitude = 0.0;
    for (std::size_t k = 0; k < row.size(); ++k) {
      double input = static_cast<double>(x[k]);
      if (quant != nullptr) {
        const std::size_t at = k / 32 * static_cast<std::size_t>(quant->block_tokens);
        input = static_cast<double>(quant->scale[at]) * static_cast<double>(quant->q[at * 32 + k % 32]);
      }
      sum += static_cast<double>(row[k]) * input;
      magnitude += std::abs(static_cast<double>(row[k]) * input);
    }
    const double error = std::abs(static_cast<double>(y[n]) - sum);
    require(error <= 1e-5 * magnitude + 1e-30, what + ": row " + std::to_string(n) + " is off");
  }
}

void test_weight(const KernelTable& scalar, const std::vector<Target>& targets, const PackedWeight& weight,
                 const std::vector<float>& x) {
  const PackedFormat& format = weight.format();
  const std::int64_t rows = weight.rows();
  const std::int64_t tiles = weight.num_tiles();
  const std::string shape =
      std::string(format.name) + " " + std::to_string(rows) + " x " + std::to_string(weight.cols());
  const bool is_float = weight.is_float();
  std::optional<Acts> acts;
  if (!is_float) acts.emplace(scalar, x, weight.cols());
  const auto num_results = static_cast<std::size_t>(kMaxTokens * rows);
  std::vector<float> expected(num_results);
  LinearArgs args{&weight, is_float ? nullptr : &acts->quant, is_float ? x.data() : nullptr, expected.data(), false};
  for (std::int64_t t = 0; t < kMaxTokens; ++t) scalar.linear[format.index](args, 0, tiles, t, t + 1);
  check_values(weight, x.data(), args.quant, expected.data(), shape);
  for (const Target& target : targets) {
    const LinearKernel run = target.kernels->linear[format.index];
    const std::string what = "linear " + target.name + " " + shape;
    std::vector<float> y(num_results);
    args.y = y.data();
    args.accumulate = false;
    for (std::int64_t n = 1; n <= kMaxTokens; ++n) {
      std::fill(y.begin(), y.end(), -7.0F);
      run(args, 0, tiles, 0, n);
      const auto end = static_cast<std::size_t>(n * rows);
      require_same_bits(y.data(), expected.data(), end, what + ", " + std::to_string(n) + " tokens");
      for (std::size_t i = end; i < num_results; ++i) require(y[i] == -7.0F, what + ": wrote beyond its tokens");
    }
    // Fewer tokens than a block of activations holds lie closer together.
    for (const std::int64_t n : {1, 5, 15}) {
      if (is_float) break;
      const Acts few(scalar, x, weight.cols(), n);
      const LinearArgs few_args{&weight, &few.quant, nullptr, y.data(), false};
      run(few_args, 0, tiles, 0, n);
      require_same_bits(y.data(), expected.data(), static_cast<std::size_t>(n * rows),
                        what + ", alone, " + std::to_string(n) + " tokens");
    }
    // Pieces of tiles and of tokens, added to what is there.
    args.accumulate = true;
    std::fill(y.begin(), y.end(), 0.5F);
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      run(args, tile, tile + 1, 0, 5);
      run(args, tile, tile + 1, 5, kMaxTokens);
    }
    std::vector<float> sums(num_results);
    for (std::size_t i = 0; i < num_results; ++i) sums[i] = 0.5F + expected[i];
    require_same_bits(y.data(), sums.data(), num_results, what + ", accumulated");
  }
}

void test_quantize(const KernelTable& scalar, const std::vector<Target>& targets, Random& random) {
  constexpr std::int64_t kCols = 96;
  std::vector<float> x = random.floats(kMaxTokens * kCols, 3.0F);
  const auto poison = [&](std::size_t token, float value) { x[token * kCols + 40] = value; };
  std::fill_n(x.begin() + kCols, 32, 0.0F);  // a group of zeros
  poison(2, INFINITY);
  poison(3, NAN);
  poison(4, 3e38F);
  for (std::size_t i = 5 * kCols; i < 6 * kCols; ++i) x[i] *= 1e-30F;
  // The scale is 1/127, so that all but the first lie halfway between two codes.
  for (std::size_t i = 0; i < 32; ++i) {
    x[6 * kCols + i] = (i % 2 == 0 ? 1.0F : -1.0F) * (static_cast<float>(i) + 0.5F) / 127.0F;
  }
  x[6 * kCols] = 1.0F;
  for (std::size_t i = 7 * kCols; i < 8 * kCols; ++i) x[i] *= 1e-38F;
  const Acts expected(scalar, x, kCols);
  for (std::size_t g = 0; g < 3; ++g) {
    require(expected.quant.scale[g * 16 + 7] < 1e-36F, "quantize: the smallest numbers must not become NaN");
  }
  for (const Target& target : targets) {
    const Acts actual(*target.kernels, x, kCols);
    require_same_bits(actual.memory.data(), expected.memory.data(), expected.memory.size(), "quantize " + target.name);
  }
}

}  // namespace

void test_linear(const KernelTable& scalar, const std::vector<Target>& targets) {
  ThreadPool pool(1);
  Random random(1);
  test_quantize(scalar, targets, random);
  for (const PackedFormat& format : kFormats) {
    for (const Shape shape : shapes_of(format)) {
      for (const bool is_extreme : {false, true}) {
        if (is_extreme && shape.rows != 15) continue;
        const std::vector<std::uint8_t> data = make_blocks(random, format, shape, is_extreme);
        const PackedWeight weight(static_cast<std::uint32_t>(format.type), shape.rows, shape.cols, data.data(),
                                  data.size(), pool);
        std::vector<float> x = random.floats(static_cast<std::size_t>(kMaxTokens * shape.cols), 2.0F);
        if (is_extreme) std::fill(x.begin(), x.end(), random.unit() < 0.0F ? -1.0F : 1.0F);
        test_weight(scalar, targets, weight, x);
      }
    }
  }
}

}  // namespace pelton::test
