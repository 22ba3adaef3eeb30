// Python face of native/sampling: converts arguments, checks sizes, releases the GIL. No arithmetic here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sampling/logprobs.h"
#include "sampling/penalties.h"
#include "sampling/philox.h"
#include "sampling/row_scan.h"
#include "sampling/sampler.h"

namespace nb = nanobind;

namespace pelton {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WritableRow = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using TargetIds = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DoubleArray = nb::ndarray<nb::numpy, double, nb::ndim<1>>;

using MaskWords = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// DRY's multiplier, base, allowed length, range and breaker token ids
using DryTuple = std::tuple<double, double, std::int64_t, std::int64_t, nb::iterable>;

// typical_p, xtc_probability, xtc_threshold, mirostat's mu (None: off), tau and eta
using WeighTuple = std::tuple<double, double, double, std::optional<double>, double, double>;

// temperature, top_k, top_p, min_p, repetition, presence and frequency penalty, seed, position, num_logprobs,
// logit_bias pairs, prompt token ids, output token ids, and what few rows have: DRY, weighing filters, mask
using RowTuple = std::tuple<double, std::int64_t, double, double, double, double, double, std::uint64_t, std::uint64_t,
                            std::int32_t, std::vector<std::pair<std::int64_t, double>>, nb::iterable, nb::iterable,
                            std::optional<DryTuple>, std::optional<WeighTuple>, std::optional<MaskWords>>;

// status, token id, log-probability, (token id, log-probability) of the most likely, mirostat's next mu (NaN: off)
using ResultTuple =
    std::tuple<std::int32_t, std::int32_t, double, std::vector<std::pair<std::int32_t, double>>, double>;

// An id that no int32 holds becomes -1, which lies outside every vocabulary too.
std::int32_t to_token_id(std::int64_t id) {
  const bool fits = id >= 0 && id <= std::numeric_limits<std::int32_t>::max();
  return fits ? static_cast<std::int32_t>(id) : -1;
}

std::vector<std::int32_t> copy_token_ids(const nb::iterable& ids) {
  std::vector<std::int32_t> copy;
  for (nb::handle id : ids) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(id.ptr(), &overflow);
    if (value == -1 && overflow == 0 && PyErr_Occurred() != nullptr) {
      throw nb::python_error();
    }
    copy.push_back(overflow != 0 ? -1 : to_token_id(value));
  }
  return copy;
}

// One row's parameters with the memory its views point to.
class Row {
 public:
  explicit Row(const RowTuple& row) {
    std::tie(params_.temperature, params_.top_k, params_.top_p, params_.min_p, params_.repetition_penalty,
             params_.presence_penalty, params_.frequency_penalty, params_.seed, params_.position, params_.num_logprobs,
             std::ignore, std::ignore, std::ignore, std::ignore, std::ignore, std::ignore) = row;
    for (const auto& [id, bias] : std::get<10>(row)) {
      logit_bias_.push_back({to_token_id(id), bias});
    }
    prompt_token_ids_ = copy_token_ids(std::get<11>(row));
    output_token_ids_ = copy_token_ids(std::get<12>(row));
    if (const auto& dry = std::get<13>(row)) {
      sampling::DryParams& to = params_.dry;
      std::tie(to.multiplier, to.base, to.allowed_length, to.range, std::ignore) = *dry;
      breaker_token_ids_ = copy_token_ids(std::get<4>(*dry));
      std::sort(breaker_token_ids_.begin(), breaker_token_ids_.end());
    }
    if (const auto& weigh = std::get<14>(row)) {
      sampling::WeighParams& to = params_.weigh;
      std::optional<double> mu;
      std::tie(to.typical_p, to.xtc_probability, to.xtc_threshold, mu, to.mirostat_tau, to.mirostat_eta) = *weigh;
      to.mirostat_mu = mu.value_or(to.mirostat_mu);
    }
    if (const auto& mask = std::get<15>(row)) {
      params_.mask = {mask->data(), mask->shape(0)};
      mask_ = *mask;
    }
  }

  // Raises unless the mask, if there is one, covers the vocabulary.
  void check_mask(std::size_t vocab_size) const {
    const std::size_t num_words = (vocab_size + 31) / 32;
    if (mask_ && mask_->shape(0) != num_words) {
      throw std::invalid_argument("mask: " + std::to_string(mask_->shape(0)) + " words; allowed: " +
                                  std::to_string(num_words));
    }
  }

  [[nodiscard]] sampling::RowParams params() const {
    sampling::RowParams params = params_;
    params.logit_bias = logit_bias_;
    params.prompt_token_ids = prompt_token_ids_;
    params.output_token_ids = output_token_ids_;
    params.dry.breaker_token_ids = breaker_token_ids_;
    return params;
  }

 private:
  sampling::RowParams params_{};
  std::vector<sampling::LogitBias> logit_bias_{};
  std::vector<std::int32_t> prompt_token_ids_{};
  std::vector<std::int32_t> output_token_ids_{};
  std::vector<std::int32_t> breaker_token_ids_{};
  std::optional<MaskWords> mask_{};
};

void check_logits(const Logits& logits, std::size_t num_rows) {
  if (logits.shape(0) != num_rows) {
    throw std::invalid_argument("logits: " + std::to_string(logits.shape(0)) + " rows for " +
                                std::to_string(num_rows) + " parameters or targets");
  }
  if (logits.shape(1) < 1 || logits.shape(1) > sampling::kMaxVocabSize) {
    throw std::invalid_argument("logits: " + std::to_string(logits.shape(1)) + " columns; allowed: 1 to " +
                                std::to_string(sampling::kMaxVocabSize));
  }
}

ResultTuple to_tuple(const sampling::RowResult& result) {
  std::vector<std::pair<std::int32_t, double>> top;
  top.reserve(result.top.size());
  for (const sampling::TokenLogprob& token : result.top) {
    top.emplace_back(token.token_id, token.logprob);
  }
  return {static_cast<std::int32_t>(result.status), result.token_id, result.logprob, std::move(top),
          result.mirostat_mu};
}

std::vector<ResultTuple> to_tuples(const std::vector<sampling::RowResult>& results) {
  std::vector<ResultTuple> tuples;
  tuples.reserve(results.size());
  std::transform(results.begin(), results.end(), std::back_inserter(tuples), to_tuple);
  return tuples;
}

std::vector<ResultTuple> sample_rows(const Logits& logits, const std::vector<RowTuple>& row_tuples, ThreadPool* pool) {
  check_logits(logits, row_tuples.size());
  const std::vector<Row> rows(row_tuples.begin(), row_tuples.end());
  std::vector<sampling::RowParams> params;
  params.reserve(rows.size());
  for (const Row& row : rows) {
    row.check_mask(logits.shape(1));
    params.push_back(row.params());
  }
  std::vector<sampling::RowResult> results;
  {
    const nb::gil_scoped_release released;
    results = sampling::sample_rows(logits.data(), logits.shape(1), params, pool);
  }
  return to_tuples(results);
}

std::vector<std::int32_t> argmax_rows(const Logits& logits) {
  std::vector<std::int32_t> token_ids(logits.shape(0));
  check_logits(logits, token_ids.size());
  const nb::gil_scoped_release released;
  sampling::argmax_rows(logits.data(), logits.shape(1), token_ids);
  return token_ids;
}

// Throws for target ids outside the vocabulary.
void check_targets(const Logits& logits, const TargetIds& targets) {
  check_logits(logits, targets.shape(0));
  for (std::size_t r = 0; r < targets.shape(0); ++r) {
    if (targets.data()[r] < 0 || static_cast<std::size_t>(targets.data()[r]) >= logits.shape(1)) {
      throw std::invalid_argument("targets: id " + std::to_string(targets.data()[r]) + "; allowed: 0 to " +
                                  std::to_string(logits.shape(1) - 1));
    }
  }
}

std::vector<ResultTuple> find_token_logprobs(const Logits& logits, const TargetIds& targets, std::size_t num_top) {
  check_targets(logits, targets);
  std::vector<sampling::RowResult> results;
  {
    const nb::gil_scoped_release released;
    results = sampling::find_token_logprobs(logits.data(), logits.shape(1), {targets.data(), targets.shape(0)}, num_top);
  }
  return to_tuples(results);
}

DoubleArray log_softmax_at(const Logits& logits, const TargetIds& targets) {
  check_targets(logits, targets);
  const std::size_t num_rows = targets.shape(0);
  auto logprobs = std::make_unique<std::vector<double>>(num_rows);
  {
    const nb::gil_scoped_release released;
    sampling::log_softmax_at(logits.data(), logits.shape(1), {targets.data(), num_rows}, *logprobs);
  }
  std::vector<double>* memory = logprobs.release();
  const nb::capsule owner(memory, [](void* p) noexcept { delete static_cast<std::vector<double>*>(p); });
  return DoubleArray(memory->data(), {num_rows}, owner);
}

std::int32_t adjust_logits(const WritableRow& logits, const RowTuple& row_tuple) {
  const Row row(row_tuple);
  std::vector<std::int32_t> counts;
  return static_cast<std::int32_t>(
      sampling::adjust_logits({logits.data(), logits.shape(0)}, row.params(), counts));
}

double gumbel_noise(std::uint64_t seed, std::uint64_t position, std::uint32_t token_id) {
  return sampling::gumbel_from_word(sampling::NoiseSource{seed, position}.word(token_id));
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("sample_rows", &sample_rows, nb::arg("logits").noconvert(), nb::arg("rows"), nb::arg("pool").none() = nb::none(),
        "Sample one token per row on the threads of `pool` (None: this one); (status, token id, log-probability, top "
        "log-probabilities, mirostat's mu) each.");
  m.def("argmax_rows", &argmax_rows, nb::arg("logits").noconvert(),
        "Id of the largest logit of each row, the lowest among equals; -1 if all are -inf or NaN.");
  m.def("find_token_logprobs", &find_token_logprobs, nb::arg("logits").noconvert(), nb::arg("targets").noconvert(),
        nb::arg("num_top"), "Log-probability of one target id per row and of its most likely tokens, as sample_rows.");
  m.def("log_softmax_at", &log_softmax_at, nb::arg("logits").noconvert(), nb::arg("targets").noconvert(),
        "Natural-log probability of one target id per row; NaN if all logits of the row are -inf or NaN.");
  m.def("adjust_logits", &adjust_logits, nb::arg("logits").noconvert(), nb::arg("row"),
        "Apply logit_bias and penalties to one row in place; returns a status.");
  m.def("philox4x32", &sampling::philox4x32, nb::arg("counter"), nb::arg("key"), "One block of Philox4x32-10.");
  m.def("gumbel_noise", &gumbel_noise, nb::arg("seed"), nb::arg("position"), nb::arg("token_id"),
        "The noise that a draw adds to the scaled logit of a token.");
}

}  // namespace pelton
