// Builds the KernelTable of the ISA whose namespace this is included in.

#include "simd/f32x16.h"

#include "ops/attention/kv_element-inl.h"

#include "ops/attention/span-inl.h"

#include "ops/attention/attend_coded-inl.h"
#include "ops/attention/attend_float-inl.h"

#include "ops/attention/attention-inl.h"
#include "ops/attention/store_kv-inl.h"
#include "ops/linear/linear-inl.h"
#include "ops/rowwise/rowwise-inl.h"
#include "probe/probe-inl.h"

inline KernelTable make_table(Isa isa) {
  return {isa,
          {&Float<0>::run, &Float<1>::run, &Float<2>::run, &Affine<3>::run, &Affine<4>::run, &Affine<5>::run,
           &Affine<6>::run, &Affine<7>::run, &Affine<8>::run, &Affine<9>::run, &Affine<10>::run, &Affine<11>::run,
           &Affine<12>::run},
          kLinearChunkBytes,
          &quantize_row,
          &rms_norm_row,
          &silu_mul_row,
          &rope_row,
          &prepare_queries,
          &attend_span,
          &merge_spans,
          &finish_attend,
          &store_kv_row,
          make_probe_kernels()};
}
