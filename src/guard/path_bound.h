// How far logits may be apart when the same tokens went through the model in steps of another shape.
#pragma once

#include "ops/plan.h"

namespace plumb {

// Every place adds in one order whatever the rows of a step, so that all paths give the same bits.
bool one_order_everywhere(const Plan& plan);

// 0 for such a plan. Otherwise each op moves the residual stream by its own bound's share, independently of the others,
// so that the sum grows with their square root; the factor 8 for the growth through the layers is an estimate. Values
// that are rounded into the cache fall to the other side where the paths differ by e before it: of all values a share
// of about e / u, by u, the format's unit, which is sqrt(u e) in the root mean square.
double path_bound(const Plan& plan, double largest_logit);

}  // namespace plumb
