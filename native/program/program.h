// A Program: the flat list of nodes of one model's forward pass, and its executor.
//
// Built once, then run once per step: one parallel region over all nodes. Sealing groups the nodes into stages; a stage
// starts when every item of the one before is done. There is no barrier that counts threads: whoever is there works.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "program/nodes.h"

namespace pelton {

// How positions become angles: angle(position, pair) = position * inv_freq[pair], cos and sin times `magnitude`.
struct RopeTable {
  std::vector<double> inv_freq;
  double magnitude = 1.0;
  bool is_adjacent = true;
};

struct NodeTiming {
  std::string kind;
  double seconds;
  double bytes;
  double ops;
};

class Program {
 public:
  Program(std::shared_ptr<ThreadPool> pool, Isa isa);

  int add_buffer(std::int64_t width, Rows rows, bool is_quantized);

  void embed(WeightPtr weight, int out);
  void rms_norm(int x, std::vector<float> weight, float eps, int out);
  void quantize(int x, int out);
  void linear(int in, std::vector<LinearPart> parts, bool accumulate);
  void silu_mul(int gate, int up, int out);
  void add(int a, int b, int out);
  void select_rows(int x, int out);
  void set_rope(RopeTable table);
  void rope(int x, std::int64_t head_dim);
  void store_kv(int k, int v, std::int64_t layer);
  // `sinks`: a logit per head that joins the softmax's denominator, or empty.
  void attend(int q, int out, std::int64_t layer, std::int64_t head_dim, const AttendParams& params,
              std::vector<float> sinks = {});

  // Adds a node of the caller's own making; the probes use it.
  void append(std::unique_ptr<Node> node) { push(std::move(node)); }

  // Ends building: forms the stages. `logits` is the buffer whose rows run() returns.
  void seal(int logits);

  // Runs one step. Throws std::invalid_argument if the batch does not fit program or cache; otherwise logits() holds
  // [R, V] float32 until the next run.
  void run(const Batch& batch, KvCache& cache);

  const float* logits() const { return step_.f32(logits_); }
  std::int64_t logits_width() const;
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int num_stages() const { return static_cast<int>(stages_.size()); }

  // Per node of the last run, as thread 0 saw it: its own items, and at a stage's last node the wait for the others.
  std::vector<NodeTiming> timings() const;

 private:
  // Nodes [begin, end) that are run item by item together.
  struct Stage {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int64_t num_items = 0;
    alignas(64) std::atomic<std::int64_t> num_arrived{0};
    alignas(64) std::atomic<bool> is_done{false};
  };

  // One thread's run of a stage's items. The owner takes them in order, which keeps its memory streams whole; a thread
  // that has none left takes from the others' runs.
  struct alignas(64) Claim {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  const BufferSpec& spec(int buffer) const;
  void check_buffer(int buffer, std::int64_t width, bool is_quantized) const;
  void push(std::unique_ptr<Node> node);
  void check_batch(const Batch& batch, const KvCache& cache) const;
  void lay_out(const Batch& batch);
  void fill_positions(const Batch& batch);
  void prepare_stages();
  template <typename Charge>
  void run_item(const Stage& stage, std::int64_t item, int thread, const Charge& charge);
  template <typename Charge>
  std::int64_t run_claims(std::size_t index, int thread, const Charge& charge);
  template <typename Charge>
  void finish_stage(std::size_t index, int thread, const Charge& charge);
  void run_stages(int thread);

  std::shared_ptr<ThreadPool> pool_;
  std::vector<BufferSpec> buffers_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::deque<Stage> stages_;
  std::deque<Claim> claims_;  // [stages, threads]
  RopeTable rope_;
  std::int64_t vocab_size_ = 0;
  std::int64_t num_heads_ = 0;
  std::int64_t num_layers_ = 0;
  std::int64_t num_kv_heads_ = 0;
  std::int64_t head_dim_ = 0;
  int logits_ = -1;

  AlignedBuffer arena_;
  std::int64_t token_capacity_ = 0;
  std::int64_t sample_capacity_ = 0;
  std::vector<float> scratch_;
  StepContext step_;
  std::vector<double> node_seconds_;
  std::vector<NodeCost> node_costs_;
};

}  // namespace pelton
