#include "program/program.h"

#include <algorithm>

#include "base/check.h"

namespace pelton {

Program::Program(std::shared_ptr<ThreadPool> pool, Isa isa) : pool_(std::move(pool)) {
  check(pool_ != nullptr, "a program needs a thread pool");
  step_.kernels = &get_kernels(isa);
  step_.pool = pool_.get();
  step_.scratch = &scratch_;
}

const BufferSpec& Program::spec(int buffer) const {
  check(buffer >= 0 && buffer < static_cast<int>(buffers_.size()), "no such buffer");
  return buffers_[static_cast<std::size_t>(buffer)];
}

void Program::check_buffer(int buffer, std::int64_t width, bool is_quantized) const {
  const BufferSpec& b = spec(buffer);
  check(b.width == width, "buffer " + std::to_string(buffer) + " has width " + std::to_string(b.width) + ", not " +
                              std::to_string(width));
  check(b.is_quantized == is_quantized, is_quantized ? "expected a quantized buffer" : "expected a float32 buffer");
}

void Program::push(std::unique_ptr<Node> node) {
  check(logits_ < 0, "the program is sealed");
  nodes_.push_back(std::move(node));
}

int Program::add_buffer(std::int64_t width, Rows rows, bool is_quantized) {
  check(width >= 1 && width < (std::int64_t{1} << 31), "a buffer's width must be 1 to 2^31-1");
  check(!is_quantized || width % 32 == 0, "a quantized buffer needs a multiple of 32 columns");
  buffers_.push_back({width, rows, is_quantized, 0});
  return static_cast<int>(buffers_.size()) - 1;
}

void Program::embed(WeightPtr weight, int out) {
  check_buffer(out, weight->cols(), false);
  vocab_size_ = weight->rows();
  push(make_embed(std::move(weight), out));
}

void Program::rms_norm(int x, std::vector<float> weight, float eps, int out) {
  const auto width = static_cast<std::int64_t>(weight.size());
  check_buffer(x, width, false);
  check_buffer(out, width, false);
  check(spec(x).rows == spec(out).rows, "rms_norm: row kinds differ");
  push(make_rms_norm(spec(x).rows, x, std::move(weight), eps, out));
}

void Program::quantize(int x, int out) {
  check_buffer(x, spec(out).width, false);
  check_buffer(out, spec(x).width, true);
  check(spec(x).rows == spec(out).rows, "quantize: row kinds differ");
  push(make_quantize(spec(x).rows, x, spec(x).width, out));
}

void Program::linear(int in, std::vector<LinearPart> parts, bool accumulate) {
  check(!parts.empty(), "linear needs a weight");
  for (const LinearPart& part : parts) {
    check(part.weight->is_float() == parts[0].weight->is_float(), "linear: float and affine weights mixed");
    check_buffer(in, part.weight->cols(), !part.weight->is_float());
    check_buffer(part.out, part.weight->rows(), false);
    check(spec(part.out).rows == spec(in).rows, "linear: row kinds differ");
  }
  push(make_linear(spec(in).rows, in, std::move(parts), accumulate));
}

void Program::silu_mul(int gate, int up, int out) {
  check_buffer(up, spec(gate).width, false);
  check_buffer(out, spec(gate).width, false);
  check(spec(up).rows == spec(gate).rows && spec(out).rows == spec(gate).rows, "silu_mul: row kinds differ");
  push(make_silu_mul(spec(gate).rows, gate, up, spec(gate).width, out));
}

void Program::add(int a, int b, int out) {
  check_buffer(b, spec(a).width, false);
  check_buffer(out, spec(a).width, false);
  check(spec(b).rows == spec(a).rows && spec(out).rows == spec(a).rows, "add: row kinds differ");
  push(make_add(spec(a).rows, a, b, spec(a).width, out));
}

void Program::select_rows(int x, int out) {
  check_buffer(out, spec(x).width, false);
  check(spec(x).rows == Rows::kTokens && spec(out).rows == Rows::kSamples, "select_rows goes from tokens to samples");
  push(make_select_rows(x, spec(x).width, out));
}

void Program::set_rope(RopeTable table) {
  check(!table.inv_freq.empty(), "rope needs at least one inverse frequency");
  rope_ = std::move(table);
}

void Program::rope(int x, std::int64_t head_dim) {
  const auto num_pairs = static_cast<std::int64_t>(rope_.inv_freq.size());
  check(num_pairs > 0 && 2 * num_pairs <= head_dim, "rope: set_rope first, with at most head_dim / 2 pairs");
  check(spec(x).rows == Rows::kTokens && !spec(x).is_quantized && spec(x).width % head_dim == 0,
        "rope: the width is not a multiple of head_dim");
  push(make_rope(x, {spec(x).width / head_dim, head_dim, num_pairs, rope_.is_adjacent}));
}

void Program::store_kv(int k, int v, std::int64_t layer) {
  check_buffer(v, spec(k).width, false);
  check(spec(k).rows == Rows::kTokens && spec(v).rows == Rows::kTokens, "store_kv works on tokens");
  num_layers_ = std::max(num_layers_, layer + 1);
  push(make_store_kv(k, v, layer));
  push(make_store_kv_in_order(k, v, layer));
}

void Program::attend(int q, int out, std::int64_t layer, std::int64_t head_dim, const AttendParams& params,
                     std::vector<float> sinks) {
  check(params.num_heads >= 1 && head_dim >= 1, "attend: num_heads and head_dim must be at least 1");
  check_buffer(q, params.num_heads * head_dim, false);
  check_buffer(out, params.num_heads * head_dim, false);
  check(spec(q).rows == Rows::kTokens && spec(out).rows == Rows::kTokens, "attend works on tokens");
  check(num_heads_ == 0 || num_heads_ == params.num_heads, "attend: layers differ in num_heads");
  check(sinks.empty() || static_cast<std::int64_t>(sinks.size()) == params.num_heads, "attend: one sink per head");
  check(params.window >= 0, "attend: window must be at least 1, or 0 for none");
  num_heads_ = params.num_heads;
  head_dim_ = head_dim;
  num_layers_ = std::max(num_layers_, layer + 1);
  push(make_attend(q, out, layer, params, std::move(sinks)));
}

std::int64_t Program::logits_width() const { return spec(logits_).width; }

void Program::seal(int logits) {
  check(logits_ < 0, "the program is sealed");
  check(!spec(logits).is_quantized, "logits must be float32");
  logits_ = logits;
  // A node joins the stage before it if both go row by row over the same rows.
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const bool joins = i > 0 && nodes_[i]->partition == Partition::kByRow &&
                       nodes_[i - 1]->partition == Partition::kByRow && nodes_[i]->rows == nodes_[i - 1]->rows;
    if (!joins) {
      stages_.emplace_back();
      stages_.back().begin = i;
    }
    stages_.back().end = i + 1;
  }
  claims_.resize(stages_.size() * static_cast<std::size_t>(pool_->num_threads()));
  node_seconds_.assign(nodes_.size(), 0.0);
}

}  // namespace pelton
