// Reads RoPE keys in the form of transformers v4 (`rope_theta`, `rope_scaling`) and v5 (`rope_parameters`).
#pragma once

#include "checkpoint/config_reader.h"
#include "model/rope_config.h"

namespace plumb {

// Problems go to the reader. Both forms present must agree; nothing that matters is defaulted (model.md 1.5).
RopeSpec parse_rope(ConfigReader& config);

}  // namespace plumb
