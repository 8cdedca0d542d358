// A check's result for people: in a terminal, and as one page of HTML that needs nothing else.
#pragma once

#include <optional>
#include <string>

#include "guard/check.h"

namespace plumb {

struct CheckPage {
  std::string model{}, build{};
  const Plan& plan;
  const CheckReport& report;
  const std::optional<LayerDrift>& drift;
};

std::string check_text(const CheckPage& page);
std::string check_html(const CheckPage& page);

}  // namespace plumb
