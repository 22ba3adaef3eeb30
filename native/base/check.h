// Checks of what comes from outside. A failed check throws, which the binding turns into a Python exception; nothing
// here is called inside a parallel region.
#pragma once

#include <stdexcept>
#include <string>

namespace pelton {

// Throws std::invalid_argument with `message` unless `condition` holds.
inline void check(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

// Same, without building a string on the path that succeeds.
inline void check(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace pelton
