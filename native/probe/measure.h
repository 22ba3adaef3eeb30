// Timed runs of the probes. Every function returns one value per repeat, so that callers see the spread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/thread_pool.h"

namespace pelton {

// Bytes per second that all threads of `pool` together read from a buffer of `num_bytes`, each thread at `num_streams`
// (1, 2, 4 or 8) places in turn. The buffer is allocated, written once and freed. Throws std::invalid_argument for
// sizes that are not allowed, std::bad_alloc.
std::vector<double> measure_read(ThreadPool& pool, Isa isa, std::size_t num_bytes, int num_streams, int num_repeats);

// Operations per second of all threads of `pool` together; `kind` is f32, int8 or bf16. Empty where the machine lacks
// the instruction.
std::vector<double> measure_ops(ThreadPool& pool, Isa isa, const std::string& kind, int num_repeats);

// Seconds that a stage of the executor takes beyond its work: programs of `num_stages` stages are run, each with one
// item per thread that does nothing for a fixed time.
std::vector<double> measure_stage_handoff(const std::shared_ptr<ThreadPool>& pool, Isa isa, int num_stages,
                                          int num_repeats);

}  // namespace pelton
