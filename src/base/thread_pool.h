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

// Kernel workers. Which worker does which part depends on the numbers alone, never on timing, so the order of additions
// is the same in every run. The caller is worker 0. One caller at a time, and a part must not call back into the pool.
class ThreadPool {
 public:
  using Part = void (*)(void* context, int part, int parts);

  explicit ThreadPool(int threads = 0);  // 0: physical_cores()
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Workers, the caller included. Less than asked only where the system refuses more threads (logged).
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(context, part, parts) for every part; part p runs on worker p % size(). Returns when all are done.
  // Allocates nothing.
  void run(int parts, Part fn, void* context);

  // f(worker, workers) once on each worker.
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
  void worker(int index);
  void do_share(int index, int workers) const;

  Task task_{};           // written by the caller before round_ moves on, read by the workers after it has
  int worker_count_ = 1;  // fixed before the first task
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint32_t> busy_workers_{0};
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
