// Which places a quick verification replays: all of them where that costs little, of larger models a sample.
#pragma once

#include <vector>

#include "engine/engine_options.h"

namespace plumb {

// By site. Always whole: what belongs to no layer, the first layer, the last, the draft layer, and the first of each
// kind. Of the other layers as many places as a few seconds of the reference allow, the cheapest first: the cost of
// one is the weight elements that a row needs.
std::vector<bool> quick_sample(const Forward& forward);

}  // namespace plumb
