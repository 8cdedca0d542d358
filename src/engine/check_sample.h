// Which places a quick verification replays: all of them where that costs little, of larger models a sample.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine_options.h"

namespace plumb {

// By site. Always whole: what belongs to no layer, the first layer, the last, the draft layer, and the first of each
// kind. Of the other layers as many places as a few seconds of the reference allow, the cheapest first: the cost of
// one is the weight elements that a row needs.
std::vector<bool> quick_sample(const Forward& forward);

// A model of which a quick verification replays as much as a full one does: it costs a second or two.
bool is_small(const Forward& forward);

// `count` token ids without a pattern, the same for the same seed.
std::vector<int32_t> some_ids(int count, uint64_t seed, int vocab_size);

// How many rows of one of its launches a check can afford: all where the op is cheap, since a fault may need a rare
// expert or a near tie to show.
int64_t affordable_rows(const Call& call, int64_t rows);

}  // namespace plumb
