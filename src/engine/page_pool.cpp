#include "engine/page_pool.h"

#include "base/check.h"

namespace plumb {

PagePool::PagePool(int64_t pages) : references_(static_cast<size_t>(pages)), suspect_(static_cast<size_t>(pages)) {
  free_.reserve(references_.size());
  quarantined_.reserve(references_.size());
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

int32_t PagePool::allocate() {
  if (free_.empty()) return -1;
  const int32_t page = free_.back();
  free_.pop_back();
  references_[index(page)] = 1;
  return page;
}

void PagePool::retain(int32_t page) {
  PLUMB_CHECK(references_[index(page)] > 0, "a page without an owner was shared");
  ++references_[index(page)];
}

void PagePool::release(int32_t page) {
  PLUMB_CHECK(references_[index(page)] > 0, "a page was released once too often");
  if (--references_[index(page)] > 0) return;
  (suspect_[index(page)] != 0 ? quarantined_ : free_).push_back(page);
}

void PagePool::mark_suspect(int32_t page) {
  PLUMB_CHECK(references_[index(page)] > 0, "a page without an owner was marked suspect");
  suspect_[index(page)] = 1;
}

void PagePool::readmit_all() {
  for (const int32_t page : quarantined_) {
    suspect_[index(page)] = 0;
    free_.push_back(page);
  }
  quarantined_.clear();
}

std::string PagePool::broken_invariant() const {
  std::vector<uint8_t> idle(references_.size());
  for (const std::vector<int32_t>* list : {&free_, &quarantined_}) {
    for (const int32_t page : *list) {
      if (idle[index(page)]++ != 0) return "page " + std::to_string(page) + " is idle twice";
      if (references_[index(page)] != 0) return "page " + std::to_string(page) + " is idle and referred to";
    }
  }
  for (const int32_t page : free_) {
    if (suspect(page)) return "suspect page " + std::to_string(page) + " is free";
  }
  for (size_t page = 0; page < references_.size(); ++page) {
    if (references_[page] < 0) return "page " + std::to_string(page) + " has a negative count";
    if (references_[page] == 0 && idle[page] == 0) return "page " + std::to_string(page) + " is lost";
  }
  return "";
}

}  // namespace plumb
