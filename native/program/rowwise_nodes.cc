// Nodes that work on one token's row at a time.
#include <algorithm>
#include <cstring>

#include "program/nodes.h"

namespace pelton {

namespace {

class EmbedNode : public RowNode {
 public:
  EmbedNode(WeightPtr weight, int out)
      : RowNode("embed", Rows::kTokens, {}, {out}), weight_(std::move(weight)), out_(out) {}
  void run_rows(const StepContext& step, std::int64_t begin, std::int64_t end) const override {
    for (std::int64_t t = begin; t < end; ++t) {
      weight_->dequantize_row(step.batch->token_ids[t], step.f32(out_) + t * weight_->cols());
    }
  }

 private:
  const WeightPtr weight_;
  const int out_;
};

class RmsNormNode : public RowNode {
 public:
  RmsNormNode(Rows rows, int x, std::vector<float> weight, float eps, int out)
      : RowNode("rms_norm", rows, {x}, {out}), weight_(std::move(weight)), eps_(eps), x_(x), out_(out) {}
  void run_rows(const StepContext& step, std::int64_t begin, std::int64_t end) const override {
    const auto n = static_cast<std::int64_t>(weight_.size());
    for (std::int64_t t = begin; t < end; ++t) {
      step.kernels->rms_norm(step.f32(x_) + t * n, weight_.data(), eps_, n, step.f32(out_) + t * n);
    }
  }

 private:
  const std::vector<float> weight_;
  const float eps_;
  const int x_, out_;
};

class QuantizeNode : public RowNode {
 public:
  QuantizeNode(Rows rows, int x, std::int64_t width, int out)
      : RowNode("quantize", rows, {x}, {out}), width_(width), x_(x), out_(out) {}
  void run_rows(const StepContext& step, std::int64_t begin, std::int64_t end) const override {
    const QuantActs out = step.quant(out_);
    for (std::int64_t t = begin; t < end; ++t) step.kernels->quantize(step.f32(x_) + t * width_, t, out);
  }

 private:
  const std::int64_t width_;
  const int x_, out_;
};

class SiluMulNode : public RowNode {
 public:
  SiluMulNode(Rows rows, int gate, int up, std::int64_t width, int out)
      : RowNode("silu_mul", rows, {gate, up}, {out}), width_(width), gate_(gate), up_(up), out_(out) {}
  void run_rows(const StepContext& step, std::int64_t begin, std::int64_t end) const override {
    for (std::int64_t t = begin; t < end; ++t) {
      step.kernels->silu_mul(step.f32(gate_) + t * width_, step.f32(up_) + t * width_, width_,
                             step.f32(out_) + t * width_);
    }
  }

 private:
  const std::int64_t width_;
  const int gate_, up_, out_;
};

class AddNode : public RowNode {
 public:
  AddNode(Rows rows, int a, int b, std::int64_t width, int out)
      : RowNode("add", rows, {a, b}, {out}), width_(width), a_(a), b_(b), out_(out) {}
  void run_rows(const StepContext& step, std::int64_t begin, std::int64_t end) const override {
    const float* a = step.f32(a_);
    const float* b = step.f32(b_);
    float* out = step.f32(out_);
    for (std::int64_t i = begin * width_; i < end * width_; ++i) out[i] = a[i] + b[i];
  }

 private:
  const std::int64_t width_;
  const int a_, b_, out_;
};

// Rows of the sampled tokens, gathered. Reads rows that other threads wrote, hence not kByRow.
class SelectRowsNode : public RowNode {
 public:
  SelectRowsNode(int x, std::int64_t width, int out)
      : RowNode("select_rows", Rows::kSamples, {x}, {out}, Partition::kOther), width_(width), x_(x), out_(out) {}
  void run_rows(const StepContext& step, std::int64_t begin, std::int64_t end) const override {
    for (std::int64_t i = begin; i < end; ++i) {
      std::copy_n(step.f32(x_) + step.batch->sample_rows[i] * width_, width_, step.f32(out_) + i * width_);
    }
  }

 private:
  const std::int64_t width_;
  const int x_, out_;
};

class RopeNode : public RowNode {
 public:
  RopeNode(int x, RopeShape shape) : RowNode("rope", Rows::kTokens, {x}, {x}), shape_(shape), x_(x) {}
  void run_rows(const StepContext& step, std::int64_t begin, std::int64_t end) const override {
    const std::int64_t width = shape_.num_heads * shape_.head_dim;
    for (std::int64_t t = begin; t < end; ++t) {
      step.kernels->rope(step.f32(x_) + t * width, shape_.num_heads, shape_.head_dim, shape_.num_pairs,
                         shape_.is_adjacent, step.cos.data() + t * shape_.num_pairs,
                         step.sin.data() + t * shape_.num_pairs);
    }
  }

 private:
  const RopeShape shape_;
  const int x_;
};

// Stores heads `begin` to `end` of one token's keys and values.
void store_token(const StepContext& step, const KvLayer& kv, std::int64_t token, std::int64_t begin, std::int64_t end,
                 const float* k, const float* v) {
  const Batch& batch = *step.batch;
  const std::int64_t width = kv.num_kv_heads * kv.head_dim;
  const std::int64_t position = step.positions[static_cast<std::size_t>(token)];
  const std::int64_t seq = step.seq_of[static_cast<std::size_t>(token)];
  const std::int32_t* table = batch.block_tables + seq * batch.table_width;
  const std::int64_t index = position / kBlockTokens;
  const KvSlot slot{table[index], position % kBlockTokens, index > 0 ? table[index - 1] : -1};
  step.kernels->store_kv(kv, slot, begin, end, k + token * width, v + token * width);
}

class StoreKvNode : public RowNode {
 public:
  StoreKvNode(int k, int v, std::int64_t layer)
      : RowNode("store_kv", Rows::kTokens, {k, v}, {}), layer_(layer), k_(k), v_(v) {}
  void run_rows(const StepContext& step, std::int64_t begin, std::int64_t end) const override {
    const KvLayer kv = step.cache->layer(layer_);
    if (has_center(kv.dtype)) return;  // the work of StoreKvInOrderNode
    for (std::int64_t t = begin; t < end; ++t) {
      store_token(step, kv, t, 0, kv.num_kv_heads, step.f32(k_), step.f32(v_));
    }
  }

 private:
  const std::int64_t layer_;
  const int k_, v_;
};

// Stores the keys and values of dtypes whose blocks depend on the blocks before: an item is one sequence's head. For
// other dtypes it has no items, which costs no barrier.
class StoreKvInOrderNode : public Node {
 public:
  StoreKvInOrderNode(int k, int v, std::int64_t layer)
      : Node("store_kv", Partition::kOther, Rows::kTokens, {k, v}, {}), layer_(layer), k_(k), v_(v) {}
  std::int64_t prepare(const StepContext& step) override {
    const KvLayer kv = step.cache->layer(layer_);
    if (!has_center(kv.dtype)) return 0;
    // The few tokens of a decode are not worth a barrier.
    num_items_ = step.batch->num_tokens <= kBlockTokens ? 1 : step.batch->num_seqs * kv.num_kv_heads;
    return num_items_;
  }
  void run(const StepContext& step, std::int64_t item, int) override {
    const KvLayer kv = step.cache->layer(layer_);
    const std::int64_t num_heads = step.batch->num_seqs * kv.num_kv_heads;
    for (std::int64_t i = item; i < num_heads; i += num_items_) {
      store_head(step, kv, i / kv.num_kv_heads, i % kv.num_kv_heads);
    }
  }

 private:
  void store_head(const StepContext& step, const KvLayer& kv, std::int64_t seq, std::int64_t head) const {
    for (std::int64_t t = step.batch->cu_seqlens[seq]; t < step.batch->cu_seqlens[seq + 1]; ++t) {
      store_token(step, kv, t, head, head + 1, step.f32(k_), step.f32(v_));
    }
  }

  const std::int64_t layer_;
  const int k_, v_;
  std::int64_t num_items_ = 0;
};

}  // namespace

std::unique_ptr<Node> make_embed(WeightPtr weight, int out) {
  return std::make_unique<EmbedNode>(std::move(weight), out);
}
std::unique_ptr<Node> make_rms_norm(Rows rows, int x, std::vector<float> weight, float eps, int out) {
  return std::make_unique<RmsNormNode>(rows, x, std::move(weight), eps, out);
}
std::unique_ptr<Node> make_quantize(Rows rows, int x, std::int64_t width, int out) {
  return std::make_unique<QuantizeNode>(rows, x, width, out);
}
std::unique_ptr<Node> make_silu_mul(Rows rows, int gate, int up, std::int64_t width, int out) {
  return std::make_unique<SiluMulNode>(rows, gate, up, width, out);
}
std::unique_ptr<Node> make_add(Rows rows, int a, int b, std::int64_t width, int out) {
  return std::make_unique<AddNode>(rows, a, b, width, out);
}
std::unique_ptr<Node> make_select_rows(int x, std::int64_t width, int out) {
  return std::make_unique<SelectRowsNode>(x, width, out);
}
std::unique_ptr<Node> make_rope(int x, RopeShape shape) { return std::make_unique<RopeNode>(x, shape); }
std::unique_ptr<Node> make_store_kv(int k, int v, std::int64_t layer) {
  return std::make_unique<StoreKvNode>(k, v, layer);
}
std::unique_ptr<Node> make_store_kv_in_order(int k, int v, std::int64_t layer) {
  return std::make_unique<StoreKvInOrderNode>(k, v, layer);
}

}  // namespace pelton
