// The nodes of a Program: one class per op, each able to do its share of a step on one thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "program/step.h"

namespace pelton {

// How a node divides its work. Consecutive kByRow nodes over the same rows need no barrier between them.
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

  // Called on one thread before each step.
  virtual void prepare(const StepContext&) {}
  // Called on every thread of the region; must not throw or allocate.
  virtual void run(const StepContext& step, int thread, int num_threads) = 0;
  virtual NodeCost cost(const StepContext&) const { return {}; }

  const std::string kind;
  const Partition partition;
  const Rows rows;
  const std::vector<int> reads;
  const std::vector<int> writes;
  bool needs_barrier = false;  // before this node; set when the program is sealed

 protected:
  // This thread's share of `n` rows.
  struct Range {
    std::int64_t begin, end;
  };
  static Range share(std::int64_t n, int thread, int num_threads) {
    return {n * thread / num_threads, n * (thread + 1) / num_threads};
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
std::unique_ptr<Node> make_store_kv(int k, int v, std::int64_t layer);
std::unique_ptr<Node> make_attend(int q, int out, std::int64_t layer, AttendParams params);

struct LinearPart {
  WeightPtr weight;
  int out;
};
std::unique_ptr<Node> make_linear(Rows rows, int in, std::vector<LinearPart> parts, bool accumulate);

// Cuts attention of the step's batch into items; `num_heads` query heads over the cache's KV heads.
void plan_attention(StepContext& step, std::int64_t num_heads);

}  // namespace pelton
