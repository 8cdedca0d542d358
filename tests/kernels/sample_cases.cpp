#include "matrix_case.h"

namespace plumb::testing {
namespace {

class SampleCase : public OpCase {
 public:
  SampleCase(std::vector<SampleRow> rows, int vocab, Values values, Rng& rng)
      : vocab_(vocab),
        settings_(std::move(rows)),
        logits_(static_cast<int64_t>(settings_.size()), vocab + 3),
        original_(static_cast<int64_t>(settings_.size()), vocab + 3),
        out_(settings_.size()) {
    rows_ = static_cast<int64_t>(settings_.size());
    for (int64_t r = 0; r < rows_; ++r) {
      fill_values(original_.row(r), vocab, values, rng);
      if (values == Values::Normal) {
        for (int i = 0; i < vocab; ++i) original_.row(r)[i] *= 4.0f;
      }
      for (int i = 0; i < 3; ++i)
        original_.row(r)[vocab + i] = i == 1 ? 1e30f : std::numeric_limits<float>::quiet_NaN();
    }
  }
  // Row 0 becomes one that must not be drawn from.
  void spoil(float value, bool everywhere) {
    if (everywhere)
      std::fill_n(original_.row(0), vocab_, value);
    else
      original_.row(0)[vocab_ / 2] = value;
  }
  std::string describe() const override {
    return "sample rows " + std::to_string(rows_) + " vocab " + std::to_string(vocab_);
  }
  Call call() const override { return {.op = Op::Sample, .m_lo = rows_, .m_hi = rows_, .k = vocab_}; }
  void reset(uint8_t poison) override {
    logits_.copy_from(original_);
    for (SampleOut& out : out_) {
      out = SampleOut{.id = static_cast<int32_t>(poison), .poisoned = true, .logprob = 7};
    }
  }
  void launch(const Kernel& kernel, Stream& stream, int64_t first, int64_t count) override {
    const SampleArgs args{.logits = logits_.tensor(first, count),
                          .vocab = vocab_,
                          .rows = std::span(settings_).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                          .out = std::span(out_).subspan(static_cast<size_t>(first), static_cast<size_t>(count))};
    kernel.launch(&args, stream);
  }
  std::vector<std::byte> outputs() const override {
    std::vector<std::byte> bytes;
    for (const SampleOut& out : out_) {
      append(bytes, &out.id, sizeof out.id);
      append(bytes, &out.poisoned, sizeof out.poisoned);
      append(bytes, &out.logprob, sizeof out.logprob);
      append(bytes, out.top_ids, sizeof out.top_ids);
      append(bytes, out.top_logprobs, sizeof out.top_logprobs);
    }
    return bytes;
  }
  void expect(Stream& stream) override {
    reset(0x5a);
    launch(reference_of(Op::Sample), stream, 0, rows_);
    want_ = out_;
  }
  // The same token, exactly: a draw within rounding of the border between two tokens does not occur among these seeds.
  void check(const Contract&, Problems& problems) override {
    for (size_t r = 0; r < out_.size(); ++r) {
      const SampleOut& have = out_[r];
      const SampleOut& want = want_[r];
      if (have.id != want.id || have.poisoned != want.poisoned) {
        problems.push_back("row " + std::to_string(r) + ": id " + std::to_string(have.id) + " for " +
                           std::to_string(want.id) + (have.poisoned != want.poisoned ? ", poisoned differs" : ""));
        continue;
      }
      if (want.poisoned || settings_[r].logprobs < 0) continue;
      const auto near = [](float a, float b) {
        return std::fabs(static_cast<double>(a) - static_cast<double>(b)) <=
               1e-5 + 2e-6 * std::fabs(static_cast<double>(b));
      };
      if (!near(have.logprob, want.logprob)) problems.push_back("logprob: out of bound");
      for (int i = 0; i < std::min({settings_[r].logprobs, 20, vocab_}); ++i) {
        if (have.top_ids[i] != want.top_ids[i] || !near(have.top_logprobs[i], want.top_logprobs[i]))
          problems.push_back("top logprobs differ");
      }
    }
  }
  bool whole() const override { return logits_.whole(); }

 private:
  int vocab_;
  std::vector<SampleRow> settings_;
  Matrix logits_, original_;
  std::vector<SampleOut> out_, want_{};
};

std::vector<SampleRow> settings() {
  static const int32_t kIds[] = {3, 0, 3, 500};
  static const float kFactor[] = {2.0f, 1.5f, 1.0f, 1.3f};
  static const float kAdd[] = {-1.0f, 30.0f, 0.5f, -2.0f};
  std::vector<SampleRow> rows;
  for (const float temperature : {0.0f, 1.0f, 0.3f, 1e-8f, 1e30f}) {
    for (const float top_p : {1.0f, 0.9f, 1e-9f, 0.0f}) {
      for (const int top_k : {0, 1, 40, 9999999}) {
        for (const float min_p : {0.0f, 0.05f, 1.0f}) {
          rows.push_back({.temperature = temperature,
                          .top_p = top_p,
                          .min_p = min_p,
                          .top_k = top_k,
                          .seed = rows.size() * 7919,
                          .position = rows.size() % 5,
                          .logprobs = static_cast<int>(rows.size() % 23) - 1});
        }
      }
    }
  }
  for (size_t i = 0; i < rows.size(); i += 3)
    rows[i].adjust_ids = kIds, rows[i].adjust_factor = kFactor, rows[i].adjust_add = kAdd;
  for (size_t i = 0; i < rows.size(); i += 4) rows[i].forbidden = std::span(kIds).subspan(1, 2);
  // Shorter than some vocabularies; all of a word, none of it, and bits at both of its ends.
  static const uint32_t kAllowed[] = {0x80000011u, 0u, 0xffffffffu, 1u, 0x80000000u};
  for (size_t i = 0; i < rows.size(); i += 5) rows[i].allowed = kAllowed;
  return rows;
}

}  // namespace

void add_sample_cases(const Contract& contract, Cases& out) {
  if (contract.op != Op::Sample) return;
  Rng rng(7);
  for (const int vocab : {1, 7, 501, 5000}) {
    for (const Values values : kAllValues) out.push_back(std::make_unique<SampleCase>(settings(), vocab, values, rng));
  }
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf}) {
    for (const bool everywhere : {false, true}) {
      auto spoiled = std::make_unique<SampleCase>(settings(), 300, Values::Normal, rng);
      spoiled->spoil(bad, everywhere);
      out.push_back(std::move(spoiled));
    }
  }
}

}  // namespace plumb::testing
