// What an op gave against what it should have given, element by element, within the bound of its kernel's contract.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "guard/op_args.h"
#include "ops/contract.h"

namespace plumb {

class ThreadPool;

struct Deviation {
  const char* tensor = "";  // "y", "latent", "experts" ...
  const char* kind = "";    // nan | inf | drift | choice | bytes
  int64_t row = -1, column = -1;
  double have = 0, want = 0;
  double bound = 0;  // of |have - want|
};

struct Judgement {
  int64_t compared = 0, outside = 0;  // elements
  double worst = 0;                   // largest |have - want| / bound; infinite where no error at all is allowed
  Deviation deviation{};              // the worst one outside

  bool passes() const { return outside == 0; }
  // "y[3, 17]: 0.5 in place of 0.25, allowed are 1e-6 (3 of 64 elements outside)"
  std::string to_string() const;
};

// Collects comparisons.
class Comparison {
 public:
  explicit Comparison(ThreadPool* workers = nullptr) : pool(workers) {}
  void element(const char* tensor, int64_t row, int64_t column, double have, double want, double bound);
  // A rule was broken that has no figure.
  void broken(const Deviation& deviation);
  const Judgement& result() const { return result_; }

  ThreadPool* const pool;  // for bounds that take long to compute; may be null

 private:
  void note(const Deviation& deviation, double ratio);
  Judgement result_{};
};

// Three versions of one op's arguments, equal but for where their tensors lie: `before` has the inputs as they were
// (also of what is changed in place), `have` what the kernel gave, `want` what the reference gave. The bound is that of
// `contract`. Choices (top-k sets, experts) may differ only where the scores they rest on are closer than their error.
// Random draws of the sampler are compared when they are greedy.
// The bounds are computed on the workers of `pool`, if there is one.
Judgement judge_outputs(const Contract& contract, const AnyArgs& before, const AnyArgs& have, const AnyArgs& want,
                        ThreadPool* pool = nullptr);

}  // namespace plumb
