// The node of attend, and the plan that cuts a batch's attention into work items.
#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>
#include <vector>

#include "program/nodes.h"

namespace pelton {

namespace {

// Query rows that share one pass over K and V in a prefill.
constexpr std::int64_t kPrefillRows = 48;
// Queries up to this many rows have their spans computed in parallel where that keeps more threads busy.
constexpr std::int64_t kMaxSplitRows = 48;

std::int64_t spans_of(std::int64_t num_positions) { return (num_positions + kSpanTokens - 1) / kSpanTokens; }

// Keys that queries see together, the first of them `first` keys, each later one another, none more than `window`.
double count_keys(double first, double num_queries, double window) {
  const double num_growing = std::clamp(window - first + 1, 0.0, num_queries);
  return num_growing * (first + (num_growing - 1) / 2) + (num_queries - num_growing) * window;
}

class AttendNode : public Node {
 public:
  AttendNode(int q, int out, std::int64_t layer, AttendParams params, std::vector<float> sinks)
      : Node("attend", Partition::kOther, Rows::kTokens, {q}, {out}),
        q_(q),
        out_(out),
        layer_(layer),
        params_(params),
        sinks_(std::move(sinks)) {}

  std::int64_t prepare(const StepContext& step) override {
    const KvLayer kv = step.cache->layer(layer_);
    const std::int64_t rows = step.max_item_rows;
    const std::int64_t state_floats = rows * (kv.value_dim + 2);
    const auto per_thread = static_cast<std::size_t>(attend_scratch_floats(rows, kv) + 2 * state_floats);
    thread_floats_ = (per_thread + 15) / 16 * 16;
    state_floats_ = static_cast<std::size_t>((state_floats + 15) / 16 * 16);
    const std::size_t needed = thread_floats_ * static_cast<std::size_t>(step.pool->num_threads()) +
                               state_floats_ * static_cast<std::size_t>(step.num_states);
    if (step.scratch->size() < needed) step.scratch->resize(needed);
    while (static_cast<std::int64_t>(joins_.size()) < step.num_joins) joins_.emplace_back(0);
    for (auto& join : joins_) join.store(0, std::memory_order_relaxed);
    prepared_.assign(static_cast<std::size_t>(step.pool->num_threads()), -1);
    return static_cast<std::int64_t>(step.attend_items.size());
  }

  void run(const StepContext& step, std::int64_t index, int thread) override {
    float* scratch = step.scratch->data() + thread_floats_ * static_cast<std::size_t>(thread);
    const AttendItem& item = step.attend_items[static_cast<std::size_t>(index)];
    if (item.span < 0) {
      run_all_spans(step, item, scratch);
      return;
    }
    const auto num_threads = static_cast<std::size_t>(step.pool->num_threads());
    run_one_span(step, item, scratch, step.scratch->data() + thread_floats_ * num_threads,
                 &prepared_[static_cast<std::size_t>(thread)]);
  }

  NodeCost cost(const StepContext& step) const override {
    const KvLayer kv = step.cache->layer(layer_);
    NodeCost cost;
    for (std::int64_t s = 0; s < step.batch->num_seqs; ++s) {
      const auto context = static_cast<double>(step.batch->context_lens[s]);
      const auto tokens = static_cast<double>(step.batch->cu_seqlens[s + 1] - step.batch->cu_seqlens[s]);
      const double token_bytes = static_cast<double>(kv.used_bytes()) / static_cast<double>(kBlockTokens);
      const double window = params_.window > 0 ? static_cast<double>(params_.window) : context;
      cost.bytes += std::min(context, window + tokens - 1) * token_bytes;
      cost.ops += 4.0 * count_keys(context - tokens + 1, tokens, window) *
                  static_cast<double>(params_.num_heads * kv.head_dim);
    }
    return cost;
  }

 private:
  SpanState state_at(float* p, std::int64_t rows) const { return {p, p + rows, p + 2 * rows}; }

  QueryBlock query_of(const StepContext& step, const AttendItem& item, const KvLayer& kv) const {
    const Batch& batch = *step.batch;
    const std::int64_t group = params_.num_heads / kv.num_kv_heads;
    const std::int64_t width = params_.num_heads * kv.head_dim;
    const std::int64_t token = batch.cu_seqlens[item.seq] + item.token_begin;
    return {step.f32(q_) + token * width + item.kv_head * group * kv.head_dim,
            width,
            item.num_tokens,
            group,
            step.positions[static_cast<std::size_t>(token)],
            item.kv_head,
            batch.block_tables + item.seq * batch.table_width,
            sinks_.empty() ? nullptr : sinks_.data() + item.kv_head * group};
  }

  // Spans before it lie outside the window of every row, which is this layer's own; they are not computed.
  std::int64_t first_span(const QueryBlock& query) const { return params_.first_seen(query.position) / kSpanTokens; }

  void finish(const StepContext& step, const AttendItem& item, const KvLayer& kv, const QueryBlock& query,
              const SpanState& state) const {
    const std::int64_t token = step.batch->cu_seqlens[item.seq] + item.token_begin;
    float* out = step.f32(out_) + token * query.q_stride + item.kv_head * query.group * kv.head_dim;
    step.kernels->finish_attend(kv, query, state, out);
  }

  void run_all_spans(const StepContext& step, const AttendItem& item, float* scratch) const {
    const KvLayer kv = step.cache->layer(layer_);
    const QueryBlock query = query_of(step, item, kv);
    const std::int64_t rows = query.num_tokens * query.group;
    float* states = scratch + attend_scratch_floats(rows, kv);
    const SpanState first = state_at(states, rows);
    const SpanState next = state_at(states + rows * (kv.value_dim + 2), rows);
    const std::int64_t begin = first_span(query);
    step.kernels->prepare_queries(kv, params_, query, scratch);
    for (std::int64_t span = begin; span < item.num_spans; ++span) {
      step.kernels->attend_span(kv, params_, query, span, scratch, span == begin ? first : next);
      if (span > begin) step.kernels->merge_spans(rows, kv.value_dim, first, next);
    }
    finish(step, item, kv, query, first);
  }

  // `prepared` is the join whose queries the scratch holds: a thread goes through a head's spans in a row.
  void run_one_span(const StepContext& step, const AttendItem& item, float* scratch, float* shared,
                    std::int64_t* prepared) {
    const KvLayer kv = step.cache->layer(layer_);
    const QueryBlock query = query_of(step, item, kv);
    const std::int64_t rows = query.num_tokens * query.group;
    auto state = [&](std::int64_t span) {
      return state_at(shared + state_floats_ * static_cast<std::size_t>(item.state + span), rows);
    };
    const std::int64_t begin = first_span(query);
    if (item.span >= begin) {
      if (*prepared != item.join) {
        step.kernels->prepare_queries(kv, params_, query, scratch);
        *prepared = item.join;
      }
      step.kernels->attend_span(kv, params_, query, item.span, scratch, state(item.span));
    }
    // Whoever finishes the last span merges them all, in index order.
    std::atomic<std::int64_t>& join = joins_[static_cast<std::size_t>(item.join)];
    if (join.fetch_add(1, std::memory_order_acq_rel) != item.num_spans - 1) return;
    for (std::int64_t span = begin + 1; span < item.num_spans; ++span) {
      step.kernels->merge_spans(rows, kv.value_dim, state(begin), state(span));
    }
    finish(step, item, kv, query, state(begin));
  }

  const int q_, out_;
  const std::int64_t layer_;
  const AttendParams params_;
  const std::vector<float> sinks_;  // [num_heads], or none
  std::size_t thread_floats_ = 0;
  std::size_t state_floats_ = 0;
  std::deque<std::atomic<std::int64_t>> joins_;
  std::vector<std::int64_t> prepared_;  // [threads]
};

}  // namespace

std::unique_ptr<Node> make_attend(int q, int out, std::int64_t layer, AttendParams params, std::vector<float> sinks) {
  return std::make_unique<AttendNode>(q, out, layer, params, std::move(sinks));
}

void plan_attention(StepContext& step, std::int64_t num_heads) {
  const Batch& batch = *step.batch;
  const std::int64_t num_kv_heads = step.cache->layer(0).num_kv_heads;
  const std::int64_t group = num_heads / num_kv_heads;
  const std::int64_t block = std::max<std::int64_t>(1, kPrefillRows / group);
  step.attend_items.clear();
  step.num_joins = 0;
  step.num_states = 0;
  step.max_item_rows = 0;
  std::int64_t num_whole = 0;
  for (std::int64_t s = 0; s < batch.num_seqs; ++s) {
    num_whole += (batch.cu_seqlens[s + 1] - batch.cu_seqlens[s] + block - 1) / block * num_kv_heads;
  }
  // Splitting changes no result, only who computes what, so it may depend on the number of threads.
  const bool is_short_of_items = num_whole < 4 * step.pool->num_threads();
  for (std::int64_t s = 0; s < batch.num_seqs; ++s) {
    const std::int64_t num_tokens = batch.cu_seqlens[s + 1] - batch.cu_seqlens[s];
    const std::int64_t start = batch.context_lens[s] - num_tokens;
    // Last block first: it sees the longest context, and long items should not come last.
    for (std::int64_t b = (num_tokens - 1) / block; b >= 0; --b) {
      const std::int64_t n = std::min(block, num_tokens - b * block);
      const std::int64_t num_spans = spans_of(start + b * block + n);
      const bool is_split = is_short_of_items && num_spans > 1 && n * group <= kMaxSplitRows;
      step.max_item_rows = std::max(step.max_item_rows, n * group);
      for (std::int64_t h = 0; h < num_kv_heads; ++h) {
        if (!is_split) {
          step.attend_items.push_back({s, h, b * block, n, num_spans, -1, 0, 0});
          continue;
        }
        // In order: a span brings the next one's first keys nearer.
        for (std::int64_t span = 0; span < num_spans; ++span) {
          step.attend_items.push_back({s, h, b * block, n, num_spans, span, step.num_states, step.num_joins});
        }
        step.num_states += num_spans;
        step.num_joins += 1;
      }
    }
  }
}

}  // namespace pelton
