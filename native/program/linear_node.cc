// The node of linear: one or more weights over the same input, cut into items of tiles and tokens.
#include <algorithm>

#include "program/nodes.h"

namespace pelton {

namespace {

constexpr std::int64_t kItemsPerThread = 8;
// Fewer bytes (times rows) than this are not worth an item of their own.
constexpr double kMinItemBytes = 16 * 1024;

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

class LinearNode : public Node {
 public:
  LinearNode(Rows rows, int in, std::vector<LinearPart> parts, bool accumulate, std::vector<int> reads,
             std::vector<int> writes)
      : Node(parts[0].weight->is_float() ? "linear_float" : "linear", Partition::kOther, rows, std::move(reads),
             std::move(writes)),
        in_(in),
        parts_(std::move(parts)),
        accumulate_(accumulate) {
    for (const LinearPart& part : parts_) {
      first_tile_.push_back(num_tiles_);
      num_tiles_ += part.weight->num_tiles();
      num_bytes_ += static_cast<double>(part.weight->num_bytes());
      ops_per_row_ += 2.0 * static_cast<double>(part.weight->rows()) * static_cast<double>(part.weight->cols());
    }
    first_tile_.push_back(num_tiles_);
  }

  std::int64_t prepare(const StepContext& step) override {
    const std::int64_t num_rows = step.num_rows(rows);
    if (num_rows == 0) return 0;
    const std::int64_t cols = parts_[0].weight->cols();
    const std::int64_t element_bytes = parts_[0].weight->is_float() ? 4 : 1;
    const std::int64_t chunk = step.kernels->linear_chunk_bytes / (cols * element_bytes);
    chunk_ = std::clamp<std::int64_t>(chunk / kActTokens * kActTokens, kActTokens, 512);
    const std::int64_t num_threads = step.pool->num_threads();
    const std::int64_t wanted = kItemsPerThread * num_threads;
    const double tile_work = num_bytes_ / static_cast<double>(num_tiles_) * static_cast<double>(num_rows);
    const auto enough = static_cast<std::int64_t>(kMinItemBytes / tile_work) + 1;
    // Every thread gets an item, however small.
    tiles_per_item_ = std::min(std::max(num_tiles_ / wanted, enough), divide_up(num_tiles_, num_threads));
    const std::int64_t tile_items = divide_up(num_tiles_, tiles_per_item_);
    // Too few tiles for the threads: divide the tokens as well.
    token_items_ = tile_items >= wanted ? 1 : std::min(divide_up(wanted, tile_items), divide_up(num_rows, 32));
    return tile_items * token_items_;
  }

  void run(const StepContext& step, std::int64_t item, int) override {
    const std::int64_t num_rows = step.num_rows(rows);
    QuantActs quant;
    if (!parts_[0].weight->is_float()) quant = step.quant(in_);
    const std::int64_t tile = item / token_items_ * tiles_per_item_;
    const std::int64_t slice = item % token_items_;
    run_tiles(step, quant, tile, std::min(tile + tiles_per_item_, num_tiles_), find_slice(num_rows, slice),
              find_slice(num_rows, slice + 1));
  }

  NodeCost cost(const StepContext& step) const override {
    return {num_bytes_, ops_per_row_ * static_cast<double>(step.num_rows(rows))};
  }

 private:
  // First row of a slice: a whole number of activation blocks.
  std::int64_t find_slice(std::int64_t num_rows, std::int64_t slice) const {
    const std::int64_t num_blocks = divide_up(num_rows, kActTokens);
    return std::min(num_blocks * slice / token_items_ * kActTokens, num_rows);
  }

  void run_tiles(const StepContext& step, const QuantActs& quant, std::int64_t tile_begin, std::int64_t tile_end,
                 std::int64_t row_begin, std::int64_t row_end) const {
    for (std::int64_t row = row_begin; row < row_end; row += chunk_) {
      for (std::size_t p = 0; p < parts_.size(); ++p) {
        const std::int64_t begin = std::max(tile_begin, first_tile_[p]) - first_tile_[p];
        const std::int64_t end = std::min(tile_end, first_tile_[p + 1]) - first_tile_[p];
        if (begin >= end) continue;
        const PackedWeight& weight = *parts_[p].weight;
        const LinearArgs args{&weight, &quant, weight.is_float() ? step.f32(in_) : nullptr, step.f32(parts_[p].out),
                              accumulate_};
        step.kernels->linear[weight.format().index](args, begin, end, row, std::min(row + chunk_, row_end));
      }
    }
  }

  const int in_;
  const std::vector<LinearPart> parts_;
  const bool accumulate_;
  std::vector<std::int64_t> first_tile_;
  std::int64_t num_tiles_ = 0;
  double num_bytes_ = 0;
  double ops_per_row_ = 0;
  std::int64_t chunk_ = 16;
  std::int64_t tiles_per_item_ = 1;
  std::int64_t token_items_ = 1;
};

}  // namespace

std::unique_ptr<Node> make_linear(Rows rows, int in, std::vector<LinearPart> parts, bool accumulate) {
  std::vector<int> reads{in};
  std::vector<int> writes;
  for (const LinearPart& part : parts) {
    writes.push_back(part.out);
    if (accumulate) reads.push_back(part.out);
  }
  return std::make_unique<LinearNode>(rows, in, std::move(parts), accumulate, std::move(reads), std::move(writes));
}

}  // namespace pelton
