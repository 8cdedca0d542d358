// Any text as config.json, generation_config.json and hf_quant_config.json: parsed or refused with words, and what is
// parsed can be used.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "checkpoint/json_file.h"
#include "checkpoint/quant_config.h"
#include "model/model_config.h"

namespace {

void try_model(const nlohmann::json& config) {
  const auto model = plumb::parse_model_config(config);
  if (!model) {
    PLUMB_CHECK(!model.error().what.empty(), "a refusal says what was found");
    return;
  }
  const auto layers = static_cast<size_t>(model->num_hidden_layers);
  PLUMB_CHECK(model->indexer_types.size() == layers && model->mlp_layer_types.size() == layers, "one entry a layer");
  PLUMB_CHECK(model->is_full_indexer(0), "layer 0 selects for itself");
  PLUMB_CHECK(model->rope.theta >= 1.0, "theta is never defaulted");
  if (model->qk_rope_head_dim <= 4096) plumb::rope_inv_freq(model->rope, model->qk_rope_head_dim);
}

void try_quantisation(const nlohmann::json& config, const nlohmann::json* hf_quant) {
  const auto quant = plumb::parse_quant_config(config, hf_quant);
  if (!quant) return;
  for (const char* module : {"lm_head", "model.layers.1.self_attn.q_a_proj", "model.layers.11.mlp.experts.3.up_proj"}) {
    const auto format = quant->expected_format(module);
    PLUMB_CHECK(!format || format->quantised(), "a rule gives a quantised format");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto document = plumb::parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "config.json",
                                          {.depth = 32, .bytes = 1u << 20});
  if (!document) return 0;
  try_model(*document);
  static_cast<void>(plumb::parse_generation_config(*document));
  try_quantisation(*document, nullptr);
  try_quantisation(nlohmann::json::object(), &*document);
  if (document->is_object()) try_quantisation(*document, &*document);
  return 0;
}
