// The ops of judge_outputs whose rule is longer than a bound: cache writes and the router.
#pragma once

#include "guard/op_judge.h"

namespace plumb {

void judge_op(const Contract& contract, const KvWriteArgs& before, const KvWriteArgs& have, const KvWriteArgs& want,
              Comparison& out);
void judge_op(const Contract& contract, const IndexQueryArgs& before, const IndexQueryArgs& have,
              const IndexQueryArgs& want, Comparison& out);
void judge_op(const Contract& contract, const IndexKeyWriteArgs& before, const IndexKeyWriteArgs& have,
              const IndexKeyWriteArgs& want, Comparison& out);
void judge_op(const Contract& contract, const RouterArgs& before, const RouterArgs& have, const RouterArgs& want,
              Comparison& out);

}  // namespace plumb
