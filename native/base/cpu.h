// What this machine's processor can do, asked once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pelton {

enum class Isa : std::uint8_t { kScalar, kAvx2, kAvxVnni, kAvx512, kAmx, kNeon };

const char* isa_name(Isa isa);

// Instruction sets that this build has kernels for and this machine can run, worst first; never empty.
std::vector<Isa> available_isas();

// The best of available_isas().
Isa detect_isa();

// Parses a name of isa_name(); throws std::invalid_argument if unknown or not available here.
Isa parse_isa(const std::string& name);

}  // namespace pelton
