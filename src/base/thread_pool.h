// Two kinds of threads beside the engine: kernel workers that share one op at a time, split statically, and a pool for
// independent low-priority jobs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace plumb {

// Cores that this process may really use: physical ones among its allowed CPUs, no more than its cgroup's CPU quota.
int physical_cores();

// Half-open range of `items` that belongs to `part` of `parts`; the parts differ by at most one item.
struct Range {
  int64_t begin = 0, end = 0;
};
constexpr Range split(int64_t items, int part, int parts) {
  const int64_t each = items / parts, more = items % parts;
  const int64_t begin = part * each + (part < more ? part : more);
  return {begin, begin + each + (part < more ? 1 : 0)};
}

// Kernel workers. What a part computes depends on its number and on how many there are, never on timing, so the order
// of additions is the same in every run. Each part belongs to a worker; a worker that has done its own takes over what
// others have not begun, so one that the system holds back on a busy machine holds back nobody. The caller is worker 0.
// One caller at a time, and a part must not call back into the pool.
class ThreadPool {
 public:
  using Part = void (*)(void* context, int part, int parts);

  explicit ThreadPool(int threads = 0);  // 0: physical_cores()
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Workers, the caller included. Less than asked only where the system refuses more threads (logged).
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(context, part, parts) for every part; part p belongs to worker p % size(). Returns when all are done.
  // Allocates nothing.
  void run(int parts, Part fn, void* context);

  // f(part, parts) for as many parts as there are workers.
  template <class F>
  void parallel(F&& f) {
    parallel_parts(size(), f);
  }
  // f(part, parts) for every part.
  template <class F>
  void parallel_parts(int parts, F&& f) {
    using Function = std::remove_reference_t<F>;
    run(
        parts, [](void* context, int part, int of) { (*static_cast<Function*>(context))(part, of); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  struct Task {
    Part fn = nullptr;
    void* context = nullptr;
    int parts = 0;
  };
  struct alignas(64) Share {
    std::atomic<uint32_t> left{0};  // parts that nobody has begun
  };
  void worker(int index);
  // Does what nobody has begun, of one worker's share, or of all beginning with `index`; returns how many parts.
  uint32_t do_share(int owner);
  uint32_t do_all(int index);

  Task task_{};           // whoever has taken a part of it may read it: it stays until that part is done
  int worker_count_ = 1;  // fixed before the first task
  std::unique_ptr<Share[]> shares_{};
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint32_t> undone_{0};  // parts
  std::atomic<bool> in_use_{false};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_{};
};

// A few low-priority threads for jobs that hold up nobody: tokenising, templates. Every job that is taken gets run,
// also when the pool is being destroyed.
class JobPool {
 public:
  JobPool(int threads, size_t capacity);
  ~JobPool();  // runs what is still queued, then joins
  JobPool(const JobPool&) = delete;
  JobPool& operator=(const JobPool&) = delete;

  // False when `capacity` jobs wait already; `job` is moved from only on success.
  [[nodiscard]] bool try_submit(std::function<void()>&& job);
  size_t waiting() const;

 private:
  void worker();

  const size_t capacity_;
  mutable std::mutex mutex_{};
  std::condition_variable ready_{};
  std::deque<std::function<void()>> jobs_{};
  bool stop_ = false;
  std::vector<std::thread> threads_{};
};

}  // namespace plumb
