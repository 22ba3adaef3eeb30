// The nodes of a Program: one class per op, each able to do its share of a step on one thread.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "program/step.h"

namespace pelton {

// How a node divides its work. Consecutive kByRow nodes over the same rows form one stage: an item is a few rows, and
// who claims it runs all the nodes on them.
enum class Partition : std::uint8_t { kByRow, kOther };

// Bytes that must move and arithmetic operations (a multiply-add is two) of one run, for rooflines.
struct NodeCost {
  double bytes = 0;
  double ops = 0;
};

class Node {
 public:
  Node(std::string kind, Partition partition, Rows rows, std::vector<int> reads, std::vector<int> writes)
      : kind(std::move(kind)), partition(partition), rows(rows), reads(std::move(reads)), writes(std::move(writes)) {}
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  virtual ~Node() = default;

  // Called on one thread before each step; returns the number of items the step's work is cut into.
  virtual std::int64_t prepare(const StepContext& step) = 0;
  // Does one item, on whichever thread claimed it; must not throw or allocate.
  virtual void run(const StepContext& step, std::int64_t item, int thread) = 0;
  virtual NodeCost cost(const StepContext&) const { return {}; }

  const std::string kind;
  const Partition partition;
  const Rows rows;
  const std::vector<int> reads;
  const std::vector<int> writes;
};

// A node whose items are runs of rows.
class RowNode : public Node {
 public:
  RowNode(std::string kind, Rows rows, std::vector<int> reads, std::vector<int> writes,
          Partition partition = Partition::kByRow)
      : Node(std::move(kind), partition, rows, std::move(reads), std::move(writes)) {}
  std::int64_t prepare(const StepContext& step) final {
    const std::int64_t num_rows = step.num_rows(rows);
    return (num_rows + rows_per_item(step) - 1) / rows_per_item(step);
  }
  void run(const StepContext& step, std::int64_t item, int) final {
    const std::int64_t begin = item * rows_per_item(step);
    run_rows(step, begin, std::min(begin + rows_per_item(step), step.num_rows(rows)));
  }

 private:
  virtual void run_rows(const StepContext& step, std::int64_t begin, std::int64_t end) const = 0;
  std::int64_t rows_per_item(const StepContext& step) const {
    return std::max<std::int64_t>(1, step.num_rows(rows) / (8 * step.pool->num_threads()));
  }
};

using WeightPtr = std::shared_ptr<const PackedWeight>;

std::unique_ptr<Node> make_embed(WeightPtr weight, int out);
std::unique_ptr<Node> make_rms_norm(Rows rows, int x, std::vector<float> weight, float eps, int out);
std::unique_ptr<Node> make_quantize(Rows rows, int x, std::int64_t width, int out);
std::unique_ptr<Node> make_silu_mul(Rows rows, int gate, int up, std::int64_t width, int out);
std::unique_ptr<Node> make_add(Rows rows, int a, int b, std::int64_t width, int out);
std::unique_ptr<Node> make_select_rows(int x, std::int64_t width, int out);

struct RopeShape {
  std::int64_t num_heads, head_dim, num_pairs;
  bool is_adjacent;
};
std::unique_ptr<Node> make_rope(int x, RopeShape shape);
// Both are needed: the first stores dtypes whose tokens are independent, the second the others.
std::unique_ptr<Node> make_store_kv(int k, int v, std::int64_t layer);
std::unique_ptr<Node> make_store_kv_in_order(int k, int v, std::int64_t layer);
std::unique_ptr<Node> make_attend(int q, int out, std::int64_t layer, AttendParams params, std::vector<float> sinks);

struct LinearPart {
  WeightPtr weight;
  int out;
};
std::unique_ptr<Node> make_linear(Rows rows, int in, std::vector<LinearPart> parts, bool accumulate);

// Cuts attention of the step's batch into items; `num_heads` query heads over the cache's KV heads.
void plan_attention(StepContext& step, std::int64_t num_heads);

}  // namespace pelton
