// What came of each planted fault, and the page about it.
#pragma once

#include <string>
#include <vector>

#include "matrix/cases.h"

namespace plumb::matrix {

struct Outcome {
  Case planted{};
  std::string setting{};
  int64_t launches = 0, rows_changed = 0;      // during plumb check
  bool found = false;                          // by plumb check: beyond the bound of an op
  bool right_op = false, right_layer = false;  // of its verdict
  std::string verdict{};                       // the place it named
  std::string quick{}, full{};                 // first check of that level that failed; full is run when quick passed

  // While serving, from some position of one request on.
  bool ran = false;  // lying kernels are chosen at a start
  int64_t served_rows_changed = 0;
  std::string incident{}, by{};  // place named, and by whom: guard, shadow or ranks
  bool neighbours_harmed = false;

  // It changed no byte, or nothing beyond the bound of the op it lives in.
  bool no_effect() const { return !found; }
};

// The page docs/fault-table.md, of each `every`-th case.
std::string markdown(const std::vector<Outcome>& outcomes, const std::vector<std::string>& absent, int every);
// Complaints: a fault that counts and was found too late or elsewhere, harm to a neighbour, too few of a kind.
// `whole`: the table is complete, so the totals must hold too.
std::vector<std::string> complaints(const std::vector<Outcome>& outcomes, bool whole);

}  // namespace plumb::matrix
