#include "base/aligned.h"

#include <sys/mman.h>

#include <new>

namespace pelton {

namespace {
constexpr std::size_t kHugePageBytes = std::size_t{1} << 21;
}

AlignedBuffer::AlignedBuffer(std::size_t num_bytes, bool huge_pages) {
  if (num_bytes == 0) return;
  void* p = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::uint8_t*>(p);
  size_ = num_bytes;
  // Advice only: fewer TLB misses while weights stream; refused on kernels without transparent huge pages.
  if (huge_pages && num_bytes >= kHugePageBytes) (void)madvise(p, num_bytes, MADV_HUGEPAGE);
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace pelton
