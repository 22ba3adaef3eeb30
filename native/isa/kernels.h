// The table of kernels, one instance per ISA. Everything above calls through it and knows no ISA.
#pragma once

#include "base/cpu.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "ops/rowwise/rowwise.h"
#include "probe/probe.h"

namespace pelton {

struct KernelTable {
  Isa isa;
  LinearKernel linear[kNumFormats];
  std::int64_t linear_chunk_bytes;  // activations that a linear's weights should pass over at a time
  QuantizeKernel quantize;
  RmsNormKernel rms_norm;
  SiluMulKernel silu_mul;
  RopeKernel rope;
  PrepareQueriesKernel prepare_queries;
  AttendSpanKernel attend_span;
  MergeSpansKernel merge_spans;
  FinishAttendKernel finish_attend;
  StoreKvKernel store_kv;
  ProbeKernels probe;
};

// The kernels of `isa`, which must be one of available_isas().
const KernelTable& get_kernels(Isa isa);

}  // namespace pelton
