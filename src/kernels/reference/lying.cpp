#include "kernels/reference/lying.h"

#ifdef PLUMB_FAULTS
#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>

#include "kernels/reference/common.h"
#include "kernels/reference/reference.h"

namespace plumb {
namespace {

using reference::reference_contract;

// Weights as these kernels read them; they live as long as one launch.
class Misread {
 public:
  const Weight* operator()(const Weight& weight) {
    Copy& copy = copies_.emplace_back();
    const EncodedMatrix& m = weight.source;
    copy.weight = weight;
    if (m.format.quantised()) {
      copy.bytes = bytes_of(m.scale, encoded_scale_bytes(m.format, m.n, m.k));
      drop_mantissas(m.format.scale, copy.bytes);
      copy.weight.source.scale = copy.bytes.data();
    } else if (m.format == kBf16) {
      copy.bytes = bytes_of(m.data, encoded_data_bytes(m.format, m.n, m.k));
      round_to_e4m3(copy.bytes);
      copy.weight.source.data = copy.bytes.data();
    }
    return &copy.weight;
  }
  std::span<const Weight> operator()(std::span<const Weight> weights) {
    std::vector<Weight>& out = lists_.emplace_back();
    for (const Weight& weight : weights) out.push_back(*(*this)(weight));
    return out;
  }

 private:
  struct Copy {
    std::vector<std::byte> bytes{};
    Weight weight{};
  };
  static std::vector<std::byte> bytes_of(const void* data, int64_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    return {from, from + bytes};
  }
  static void drop_mantissas(ScaleType type, std::vector<std::byte>& scales) {
    if (type == ScaleType::UE4M3)
      for (std::byte& code : scales) code &= std::byte{0x78};
    for (size_t i = 0; type == ScaleType::F32 && i + 4 <= scales.size(); i += 4) {
      uint32_t value = 0;
      std::memcpy(&value, scales.data() + i, 4);
      value &= 0xff800000u;
      std::memcpy(scales.data() + i, &value, 4);
    }
  }
  static void round_to_e4m3(std::vector<std::byte>& elements) {
    for (size_t i = 0; i + 2 <= elements.size(); i += 2) {
      uint16_t code = 0;
      std::memcpy(&code, elements.data() + i, 2);
      code = f32_to_bf16(e4m3_to_f32(f32_to_e4m3(bf16_to_f32(code))));
      std::memcpy(elements.data() + i, &code, 2);
    }
  }
  std::deque<Copy> copies_{};
  std::deque<std::vector<Weight>> lists_{};
};

void run_reference(Op op, const void* args, Stream& stream) {
  static const std::vector<Kernel> all = reference_kernels();
  std::find_if(all.begin(), all.end(), [op](const Kernel& k) { return k.contract.op == op; })->launch(args, stream);
}

void linear(const LinearArgs& args, Stream& stream) {
  Misread misread;
  LinearArgs wrong = args;
  wrong.w = misread(*args.w);
  run_reference(Op::Linear, &wrong, stream);
}

void honest_linear(const LinearArgs& args, Stream& stream) { run_reference(Op::Linear, &args, stream); }

void mlp(const MlpArgs& args, Stream& stream) {
  Misread misread;
  MlpArgs wrong = args;
  for (const Weight** w : {&wrong.gate, &wrong.up, &wrong.down}) *w = misread(**w);
  run_reference(Op::Mlp, &wrong, stream);
}

void moe(const MoeArgs& args, Stream& stream) {
  Misread misread;
  MoeArgs wrong = args;
  for (std::span<const Weight>* w : {&wrong.gate, &wrong.up, &wrong.down}) *w = misread(*w);
  run_reference(Op::Moe, &wrong, stream);
}

void mla_attend(const MlaAttendArgs& args, Stream& stream) {
  Misread misread;
  MlaAttendArgs wrong = args;
  wrong.kv_b = misread(*args.kv_b);
  run_reference(Op::MlaAttend, &wrong, stream);
}

Contract lying_contract(Op op) {
  Contract contract = reference_contract(op);
  contract.name = to_string(op) + ".lying";
  contract.reference = false;
  contract.sum_order = "lying";
  contract.preference = -1;  // below every honest kernel
  return contract;
}

}  // namespace

std::vector<Kernel> lying_kernels() {
  Contract wants_ue8m0 = lying_contract(Op::Linear);
  wants_ue8m0.name = "linear.wants_ue8m0";
  wants_ue8m0.weight = {kFp8BlockUe8m0};
  return {make_kernel<LinearArgs, linear>(lying_contract(Op::Linear)),
          make_kernel<MlpArgs, mlp>(lying_contract(Op::Mlp)), make_kernel<MoeArgs, moe>(lying_contract(Op::Moe)),
          make_kernel<MlaAttendArgs, mla_attend>(lying_contract(Op::MlaAttend)),
          make_kernel<LinearArgs, honest_linear>(wants_ue8m0)};
}

}  // namespace plumb
#endif
