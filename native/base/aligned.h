// Cache-line aligned, zero-filled memory that is committed only when touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace pelton {

// Owns `size()` bytes from an anonymous map: zeroed, page-aligned, lazily committed. Move-only.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Throws std::bad_alloc when the address space or memory is not to be had. `huge_pages` asks the kernel for them.
  explicit AlignedBuffer(std::size_t num_bytes, bool huge_pages = false);
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~AlignedBuffer();

  std::uint8_t* data() { return data_; }
  const std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  void swap(AlignedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace pelton
