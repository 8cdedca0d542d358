#include <algorithm>

#include "matrix_case.h"

namespace plumb::testing {
namespace {

struct RouterShape {
  int64_t rows = 1, experts = 8, hidden = 64, k = 2;
  int n_group = 1, topk_group = 1;
  bool norm = true;
  Format format{};
  Values values = Values::Normal;
  bool bias = true;
};

class RouterCase : public MatrixCase {
 public:
  RouterCase(const RouterShape& shape, Rng& rng)
      : shape_(shape),
        gate_(shape.format, shape.experts, shape.hidden, Values::Normal, rng),
        bias_(static_cast<size_t>(shape.experts) * 4, 4),
        sequence_(static_cast<size_t>(shape.rows), 0) {
    rows_ = shape.rows;
    padding_row_ = shape.rows >= 3 ? 1 : -1;
    if (padding_row_ >= 0) sequence_[static_cast<size_t>(padding_row_)] = -1;
    fill_values(bias_.as<float>(), shape.experts, shape.values == Values::Zeros ? Values::Zeros : Values::Normal, rng);
    add_input(shape.hidden, shape.values, rng);
    add_output(shape.experts);
    add_output(shape.k);
    add_output(shape.k);
  }
  std::string describe() const override {
    return "router rows " + std::to_string(rows_) + " experts " + std::to_string(shape_.experts) + " k " +
           std::to_string(shape_.k) + " groups " + std::to_string(shape_.n_group) + " " + shape_.format.to_string() +
           " " + to_string(shape_.values);
  }
  Call call() const override {
    return {.op = Op::Router,
            .weight = shape_.format,
            .m_lo = rows_,
            .m_hi = rows_,
            .n = shape_.experts,
            .k = shape_.hidden,
            .topk = shape_.k};
  }
  bool prepare(const Registry& registry, Layout layout) override { return gate_.prepare(registry, layout); }
  bool whole() const override { return MatrixCase::whole() && gate_.whole() && bias_.fences_whole(); }
  void check(const Contract& contract, Problems& problems) override {
    MatrixCase::check(contract, problems);
    for (int64_t i = 0; padding_row_ >= 0 && i < shape_.k; ++i)
      if (output(1).ints(padding_row_)[i] != -1) problems.push_back("experts: chosen for a padding row");
  }

 protected:
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return RouterArgs{.x = in(0).tensor(first, count),
                      .gate = &gate_.get(),
                      .bias = shape_.bias ? bias_.as<float>() : nullptr,
                      .sequence = padding_row_ < 0 ? nullptr : sequence_.data() + first,
                      .n_group = shape_.n_group,
                      .topk_group = shape_.topk_group,
                      .norm_topk_prob = shape_.norm,
                      .routed_scaling_factor = 2.5f,
                      .experts = output(1, side).tensor(first, count, DType::I32),
                      .weights = output(2, side).tensor(first, count),
                      .logits = output(0, side).tensor(first, count)};
  }

 private:
  RouterShape shape_;
  TestWeight gate_;
  Buffer bias_;
  CaseVector<int32_t> sequence_;
};

struct MoeShape {
  int64_t rows = 1, experts = 6, hidden = 64, inter = 32, k = 2;
  Format format{};
  Values values = Values::Normal;
  Numerics numerics{};
  bool shared = true;
  int32_t first = 0;  // expert held; rows then choose others too, before and behind
};

class MoeCase : public MatrixCase {
 public:
  MoeCase(const MoeShape& shape, Rng& rng) : shape_(shape) {
    rows_ = shape.rows;
    padding_row_ = shape.rows >= 3 ? 1 : -1;
    for (int64_t e = 0; e < shape.experts; ++e) {
      weights_.emplace_back(shape.format, shape.inter, shape.hidden, Values::Normal, rng);
      weights_.emplace_back(shape.format, shape.inter, shape.hidden, Values::Normal, rng);
      weights_.emplace_back(shape.format, shape.hidden, shape.inter, Values::Normal, rng);
      if (shape.format.global_scale)
        weights_[static_cast<size_t>(3 * e + 1)].mutable_get().source.global_scale *= static_cast<float>(e + 1);
    }
    add_input(shape.hidden, shape.values, rng);
    add_input(shape.k, Values::Normal, rng);  // weights of the choice
    if (shape.shared) add_input(shape.hidden, Values::Normal, rng);
    choice_ = std::make_unique<Matrix>(rows_, shape.k);
    for (int64_t t = 0; t < rows_; ++t) {
      std::vector<int32_t> ids(static_cast<size_t>(shape.experts + 2 * shape.first));
      for (size_t e = 0; e < ids.size(); ++e) ids[e] = static_cast<int32_t>(e);
      std::shuffle(ids.begin(), ids.end(), rng);
      for (int64_t i = 0; i < shape.k; ++i) choice_->ints(t)[i] = t == padding_row_ ? -1 : ids[static_cast<size_t>(i)];
    }
    add_output(shape.hidden);
  }
  std::string describe() const override {
    return "moe rows " + std::to_string(rows_) + " hidden " + std::to_string(shape_.hidden) + " inter " +
           std::to_string(shape_.inter) + " " + shape_.format.to_string() + " " + to_string(shape_.values) +
           (shape_.numerics.round_bf16 ? " bf16" : "") + (shape_.first > 0 ? " some experts" : "");
  }
  Call call() const override {
    return {.op = Op::Moe,
            .weight = shape_.format,
            .m_lo = rows_,
            .m_hi = rows_,
            .n = shape_.inter,
            .k = shape_.hidden,
            .topk = shape_.k,
            .numerics = shape_.numerics};
  }
  bool prepare(const Registry& registry, Layout layout) override {
    for (TestWeight& weight : weights_) {
      if (!weight.prepare(registry, layout)) return false;
    }
    if (layout == Layout::CudaRowMajor) place_at_equal_distances();
    return true;
  }
  bool whole() const override {
    return MatrixCase::whole() && choice_->whole() && stacks_[0].fences_whole() && stacks_[1].fences_whole() &&
           stacks_[2].fences_whole() &&
           std::all_of(weights_.begin(), weights_.end(), [](const TestWeight& w) { return w.whole(); });
  }

 protected:
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    for (std::vector<Weight>& part : parts_) part.clear();
    for (size_t i = 0; i < weights_.size(); ++i) parts_[i % 3].push_back(weights_[i].get());
    return MoeArgs{.gate = parts_[0],
                   .up = parts_[1],
                   .down = parts_[2],
                   .x = in(0).tensor(first, count),
                   .first_expert = shape_.first,
                   .experts = choice_->tensor(first, count, DType::I32),
                   .weights = in(1).tensor(first, count),
                   .shared = shape_.shared ? in(2).tensor(first, count) : Tensor{},
                   .y = output(0, side).tensor(first, count),
                   .numerics = shape_.numerics};
  }

 private:
  // As a model's loader lays the experts of a layer.
  void place_at_equal_distances() {
    for (size_t part = 0; part < 3; ++part) {
      const size_t bytes = weights_[part].prepared_bytes();
      stacks_[part] = Buffer(bytes * static_cast<size_t>(shape_.experts));
      for (size_t e = 0; e < static_cast<size_t>(shape_.experts); ++e) {
        Weight& weight = weights_[3 * e + part].mutable_get();
        std::byte* at = stacks_[part].data() + e * bytes;
        std::memcpy(at, weight.prepared, bytes);
        weight.prepared = at;
      }
    }
  }

  MoeShape shape_;
  Buffer stacks_[3] = {Buffer(0), Buffer(0), Buffer(0)};
  std::vector<TestWeight> weights_{};
  std::vector<Weight> parts_[3]{};
  std::unique_ptr<Matrix> choice_{};
};

void add_router_cases(const Contract& contract, Cases& out) {
  Rng rng(2);
  for (const Format& format : contract.weight) {
    const int64_t k_step = std::max<int64_t>(contract.limits.k_multiple, format.element == DType::F4E2M1 ? 16 : 1);
    for (const int64_t hidden : edge_sizes({1, 80, 160}, k_step, contract.limits.k_max)) {
      for (const int64_t rows : edge_rows(contract, {1, 4, 19}))
        out.push_back(std::make_unique<RouterCase>(RouterShape{.rows = rows, .hidden = hidden, .format = format}, rng));
    }
    const int64_t hidden = edge_sizes({96}, k_step, 0)[0];
    const int64_t rows = edge_rows(contract, {5}).front();
    for (const Values values : kAllValues) {
      out.push_back(std::make_unique<RouterCase>(
          RouterShape{.rows = rows, .experts = 24, .hidden = hidden, .k = 8, .format = format, .values = values}, rng));
    }
    out.push_back(std::make_unique<RouterCase>(RouterShape{.rows = rows,
                                                           .experts = 16,
                                                           .hidden = hidden,
                                                           .k = 4,
                                                           .n_group = 4,
                                                           .topk_group = 2,
                                                           .norm = false,
                                                           .format = format},
                                               rng));
    out.push_back(std::make_unique<RouterCase>(
        RouterShape{.rows = rows, .experts = 256, .hidden = hidden, .k = 8, .format = format, .bias = false}, rng));
  }
}

void add_moe_cases(const Contract& contract, Cases& out) {
  Rng rng(3);
  for (const Format& format : contract.weight) {
    const int64_t step = std::max<int64_t>(
        {contract.limits.k_multiple, contract.limits.n_multiple, format.element == DType::F4E2M1 ? 16 : 1});
    for (const int64_t inter : edge_sizes({1, 48}, step, 0)) {
      for (const int64_t hidden : edge_sizes({33, 144}, step, 0)) {
        for (const int64_t rows : edge_rows(contract, {1, 2, 3, 40})) {
          out.push_back(std::make_unique<MoeCase>(
              MoeShape{.rows = rows, .hidden = hidden, .inter = inter, .format = format, .shared = rows != 2}, rng));
        }
      }
    }
    const int64_t size = edge_sizes({64}, step, 0)[0];
    for (const int64_t rows : edge_rows(contract, {1, 40}))
      out.push_back(std::make_unique<MoeCase>(
          MoeShape{.rows = rows, .hidden = size, .inter = size, .k = 3, .format = format, .first = 4}, rng));
    for (const Values values : kAllValues)
      out.push_back(std::make_unique<MoeCase>(MoeShape{.rows = edge_rows(contract, {4}).front(),
                                                       .hidden = size,
                                                       .inter = size,
                                                       .format = format,
                                                       .values = values},
                                              rng));
    for (const Numerics& numerics : edge_numerics(contract)) {
      out.push_back(std::make_unique<MoeCase>(MoeShape{.rows = edge_rows(contract, {4}).front(),
                                                       .hidden = size,
                                                       .inter = size,
                                                       .format = format,
                                                       .numerics = numerics},
                                              rng));
    }
  }
}

}  // namespace

void add_expert_cases(const Contract& contract, Cases& out) {
  if (contract.op == Op::Router) add_router_cases(contract, out);
  if (contract.op == Op::Moe) add_moe_cases(contract, out);
}

}  // namespace plumb::testing
