#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace plumb {
namespace {

// Spinning hides the gaps between the ops of a step; longer than this the core belongs to others. Pure spinning loses a
// factor of ten as soon as another process shares the cores (seen on two cores).
constexpr std::chrono::microseconds kSpin{10};
constexpr int kJobNice = 5;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Until `value` is no longer `old`: first by looking, then asleep. Returns the new value.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
  const auto give_up = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      const uint32_t now = value.load(std::memory_order_acquire);
      if (now != old) return now;
      relax();
    }
  } while (std::chrono::steady_clock::now() < give_up);
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

int read_int(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int value = otherwise;
  return file >> value ? value : otherwise;
}

// CPUs' worth of time that the control group allows, or `otherwise` without a limit. Format of cpu.max: "quota period".
int cgroup_cpus(int otherwise) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || !(quota > 0) || !(period > 0)) return otherwise;  // "max" is no number
  return std::max(1, static_cast<int>(std::ceil(quota / period)));
}

void name_thread(std::thread& thread, const std::string& name) {
  pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
}

// std::thread reports a refused thread by throwing; here that is an answer like any other.
template <class F>
bool start_thread(std::vector<std::thread>& threads, const std::string& name, F&& body) {
  try {
    threads.emplace_back(std::forward<F>(body));
  } catch (const std::system_error& e) {
    log_warn("could not start thread " + name + " (" + e.what() + "): going on with fewer");
    return false;
  }
  name_thread(threads.back(), name);
  return true;
}

}  // namespace

int physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::set<std::pair<int, int>> cores;  // (package, core): siblings share one
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    const int core = read_int(topology + "core_id", -1);
    // Without topology each CPU counts; the negative package keeps the two kinds apart.
    cores.insert(core < 0 ? std::pair{-1, cpu} : std::pair{read_int(topology + "physical_package_id", 0), core});
  }
  const int count = std::max(1, static_cast<int>(cores.size()));
  return std::min(count, cgroup_cpus(count));
}

ThreadPool::ThreadPool(int threads) {
  const int wanted = threads > 0 ? threads : physical_cores();
  shares_ = std::make_unique<Share[]>(static_cast<size_t>(wanted));
  worker_count_ = wanted;
  workers_.reserve(static_cast<size_t>(wanted - 1));
  for (int i = 1; i < wanted; ++i)
    if (!start_thread(workers_, "plumb-kernel-" + std::to_string(i), [this, i] { worker(i); })) break;
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

uint32_t ThreadPool::do_share(int owner) {
  std::atomic<uint32_t>& left = shares_[static_cast<size_t>(owner)].left;
  uint32_t done = 0;
  for (uint32_t have = left.load(std::memory_order_relaxed); have > 0;) {
    if (!left.compare_exchange_weak(have, have - 1, std::memory_order_acq_rel, std::memory_order_relaxed)) continue;
    const int share = (task_.parts - owner + worker_count_ - 1) / worker_count_;
    task_.fn(task_.context, owner + (share - static_cast<int>(have)) * worker_count_, task_.parts);
    ++done;
    have = left.load(std::memory_order_relaxed);
  }
  return done;
}

uint32_t ThreadPool::do_all(int index) {
  uint32_t done = 0;
  for (int i = 0; i < worker_count_; ++i) done += do_share((index + i) % worker_count_);
  return done;
}

void ThreadPool::run(int parts, Part fn, void* context) {
  PLUMB_CHECK(!in_use_.exchange(true, std::memory_order_acquire), "one thread pool, two callers at once");
  if (parts > 1 && worker_count_ > 1) {
    task_ = {fn, context, parts};
    undone_.store(static_cast<uint32_t>(parts), std::memory_order_relaxed);
    for (int i = 0; i < worker_count_; ++i) {
      const int share = std::max(0, (parts - i + worker_count_ - 1) / worker_count_);
      shares_[static_cast<size_t>(i)].left.store(static_cast<uint32_t>(share), std::memory_order_release);
    }
    round_.fetch_add(1);
    round_.notify_all();
    const uint32_t done = do_all(0);
    uint32_t undone = undone_.fetch_sub(done, std::memory_order_acq_rel) - done;
    while (undone != 0) undone = wait_for_change(undone_, undone);
  } else {
    for (int part = 0; part < parts; ++part) fn(context, part, parts);
  }
  in_use_.store(false, std::memory_order_release);
}

void ThreadPool::worker(int index) {
  uint32_t seen = 0;
  while (true) {
    // A round that this worker comes too late for was done by the others.
    seen = wait_for_change(round_, seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    const uint32_t done = do_all(index);
    // Only the last part wakes the caller: it waits for zero, and a wake-up for each would be a system call for each.
    if (done > 0 && undone_.fetch_sub(done, std::memory_order_acq_rel) == done) undone_.notify_one();
  }
}

JobPool::JobPool(int threads, size_t capacity) : capacity_(capacity) {
  for (int i = 0; i < threads; ++i) {
    const bool started = start_thread(threads_, "plumb-job-" + std::to_string(i), [this] { worker(); });
    PLUMB_CHECK(started || i > 0, "not one thread for jobs could be started");
    if (!started) break;
  }
}

JobPool::~JobPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool JobPool::try_submit(std::function<void()>&& job) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_ || jobs_.size() >= capacity_) return false;
    jobs_.push_back(std::move(job));
  }
  ready_.notify_one();
  return true;
}

size_t JobPool::waiting() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

void JobPool::worker() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kJobNice);  // Linux: of this thread alone; a wish, not a need
  while (true) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace plumb
