// A Program: the flat list of nodes of one model's forward pass, and its executor.
//
// Built once (add_* calls, then seal()), then run once per step: one parallel region over all nodes, with a barrier only
// where a node reads or overwrites what another thread may have touched since the last one.
#pragma once

#include <cstdint>
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
  void attend(int q, int out, std::int64_t layer, std::int64_t head_dim, const AttendParams& params);

  // Ends building: places barriers. `logits` is the buffer whose rows run() returns.
  void seal(int logits);

  // Runs one step. Throws std::invalid_argument if the batch does not fit program or cache; otherwise logits() holds
  // [R, V] float32 until the next run.
  void run(const Batch& batch, KvCache& cache);

  const float* logits() const { return step_.f32(logits_); }
  std::int64_t logits_width() const;
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int num_barriers() const;

  // Per node of the last run, as thread 0 saw it (waiting at the barrier before it included).
  std::vector<NodeTiming> timings() const;

 private:
  const BufferSpec& spec(int buffer) const;
  void check_buffer(int buffer, std::int64_t width, bool is_quantized) const;
  void push(std::unique_ptr<Node> node);
  void check_batch(const Batch& batch, const KvCache& cache) const;
  void lay_out(const Batch& batch);
  void fill_positions(const Batch& batch);

  std::shared_ptr<ThreadPool> pool_;
  std::vector<BufferSpec> buffers_;
  std::vector<std::unique_ptr<Node>> nodes_;
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
