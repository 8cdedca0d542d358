// A bounded queue of many producers and one consumer: how threads post work to the thread that owns something.
// A full queue says no at once; nobody ever waits to push, so a slow consumer can't stall its producers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace plumb {

template <class T>
class BoundedQueue {
 public:
  // Storage for `capacity` items is taken here; pushes and pops allocate nothing afterwards (if the consumer hands the
  // same vector to every pop).
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { items_.reserve(capacity); }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // False when full or closed; `item` is moved from only on success, so the caller can still answer for it.
  bool try_push(T&& item) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // Everything queued, in order of arrival, replaces what `out` held. Returns the number of items. Never waits.
  size_t pop_all(std::vector<T>& out) {
    const std::lock_guard lock(mutex_);
    return take(out);
  }

  // As pop_all, but waits until there is an item, a wake(), a close(), or `timeout` is over.
  template <class Rep, class Period>
  size_t wait_pop_all(std::vector<T>& out, std::chrono::duration<Rep, Period> timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [this] { return !items_.empty() || woken_ || closed_; });
    woken_ = false;
    return take(out);
  }

  // Ends the consumer's present wait, or its next one if it isn't waiting now.
  void wake() {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    ready_.notify_one();
  }

  // No push succeeds from now on; what is queued can still be popped.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  size_t take(std::vector<T>& out) {
    out.clear();
    out.reserve(capacity_);  // the two vectors change places, so both need the room
    out.swap(items_);
    return out.size();
  }

  const size_t capacity_;
  mutable std::mutex mutex_{};
  std::condition_variable ready_{};
  std::vector<T> items_{};
  bool woken_ = false;
  bool closed_ = false;
};

}  // namespace plumb
