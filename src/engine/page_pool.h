// Reference-counted pages of the KV cache. A page id stands for that page of every layer: latent rows, index keys and
// the MTP layer's rows come and go together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plumb {

class PagePool {
 public:
  explicit PagePool(int64_t pages);

  // A page with one reference, or -1 when none is free.
  int32_t allocate();
  void retain(int32_t page);
  // The last reference frees the page, or quarantines it when it is suspect.
  void release(int32_t page);

  // A poisoned row wrote to the page or read from it: once nobody refers to it, it waits in quarantine until its bytes
  // have been wiped.
  void mark_suspect(int32_t page);
  bool suspect(int32_t page) const { return suspect_[index(page)] != 0; }
  const std::vector<int32_t>& quarantined() const { return quarantined_; }
  // Everything in quarantine has been wiped: free again.
  void readmit_all();

  int32_t references(int32_t page) const { return references_[index(page)]; }
  int64_t total() const { return static_cast<int64_t>(references_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }

  // Empty when every page is free, quarantined or referred to, and in one of these states only; else what is wrong.
  std::string broken_invariant() const;

 private:
  static size_t index(int32_t page) { return static_cast<size_t>(page); }

  std::vector<int32_t> references_{};  // [pages]
  std::vector<uint8_t> suspect_{};     // [pages]
  std::vector<int32_t> free_{};        // last in, first out: a page just used is still in the caches
  std::vector<int32_t> quarantined_{};
};

}  // namespace plumb
