#include "matrix/table.h"

#include <algorithm>
#include <cstdio>
#include <map>

namespace plumb::matrix {
namespace {

constexpr int kWantedInAll = 300, kWantedOfAKind = 10;

struct Sum {
  int planted = 0, counted = 0, right_op = 0, right_layer = 0, quick = 0, full = 0;
  int served = 0, guard = 0, shadow = 0, ranks = 0, right_place = 0;
  void add(const Outcome& o) {
    ++planted;
    counted += o.found;
    right_op += o.right_op;
    right_layer += o.right_layer;
    quick += o.found && !o.quick.empty();
    full += o.found && o.quick.empty() && !o.full.empty();
    if (!o.found || !o.ran || o.served_rows_changed == 0) return;
    ++served;
    guard += o.by == "guard";
    shadow += o.by == "shadow";
    ranks += o.by == "ranks";
    right_place += o.incident == o.planted.place;
  }
};

std::string cells(const std::string& name, const Sum& s) {
  std::string text = "| " + name;
  for (const int value : {s.planted, s.planted - s.counted, s.counted, s.quick, s.full, s.right_op, s.right_layer,
                          s.served, s.guard, s.shadow, s.ranks, s.right_place})
    text += " | " + std::to_string(value);
  return text + " |\n";
}

std::string describe(const Outcome& o) {
  return o.planted.kind() + " at " + o.planted.place + ", " + o.planted.phase() + "; " + o.setting;
}

template <class Key>
std::string summary(const char* heading, const std::vector<Outcome>& outcomes, Key key) {
  std::map<std::string, Sum> sums;
  Sum all;
  for (const Outcome& o : outcomes) {
    sums[key(o)].add(o);
    all.add(o);
  }
  std::string text =
      std::string("| ") + heading +
      " | planted | no effect | counts | quick | full | op | layer | served | guard | shadow | ranks | place |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const auto& [name, sum] : sums) text += cells(name, sum);
  return text + cells("all", all) + "\n";
}

// Why a fault that counts is not all it should be; empty: it is.
std::string shortcoming(const Outcome& o) {
  if (o.neighbours_harmed) return "other requests' text changed";
  if (!o.found) return {};
  if (!o.right_layer) return "check named " + o.verdict;
  if (o.quick.empty()) return o.full.empty() ? "verification passed" : "only full verification found it";
  if (o.ran && o.served_rows_changed > 0 && o.by.empty()) return "not found while serving";
  if ((o.by == "guard" || o.by == "ranks") && o.incident != o.planted.place) return o.by + " named " + o.incident;
  return {};
}

}  // namespace

std::string markdown(const std::vector<Outcome>& outcomes, const std::vector<std::string>& absent, int every) {
  std::string text =
      R"(# Planted faults and where they were found
Made by `build/faults/tests/fault/fault_matrix --doc docs/fault-table.md` of a build with `cmake --preset faults`; CI runs a
tenth of it. A fault is a kind, a place of the plan and a phase, in one setting of checkpoint, backend and caches. It counts
when it changed an output beyond the bound of the op it lives in, `rank_skew` when it changed a bit; the others are listed
at the end as `no effect`, with what the comparison of their outputs with the right ones gave.

- *quick*, *full*: found by verification before ready; `full` is tried where `quick` passed.
- *op*, *layer*: `plumb check` named the right one; of `rank_skew` the check `ranks` of a start.
- *served*: planted while serving, from a position of one request on, and it changed rows there; *guard* ended the request
  with the provenance of a value that is not finite, *shadow* (at rate 1) with that of an op out of its bound, *ranks* all
  requests, since the ranks had other bits; *place*: an incident names the right one. What the shadow finds when its request
  is over is counted, and no incident tells of it.

)";
  if (every > 1)
    text += "**This page has one in " + std::to_string(every) + " of the cases** (`--every " + std::to_string(every) +
            "`); the whole has not been run for it.\n\n";
  text += summary("kind", outcomes, [](const Outcome& o) { return o.planted.kind(); });
  text += summary("phase", outcomes, [](const Outcome& o) { return o.planted.phase(); });
  text += summary("op", outcomes, [](const Outcome& o) { return o.planted.op; });
  text += summary("setting", outcomes, [](const Outcome& o) { return o.setting; });
  for (const std::string& name : absent) text += "Not run: " + name + " was not there.\n";
  text += "\n## Not as it should be\n";
  for (const Outcome& o : outcomes) {
    const std::string why = shortcoming(o);
    if (!why.empty()) text += "- " + describe(o) + ": " + why + "\n";
    if (why.empty() && o.found && !o.right_op) text += "- " + describe(o) + ": check named " + o.verdict + "\n";
  }
  text += "\n## No effect\n";
  for (const Outcome& o : outcomes) {
    if (!o.no_effect()) continue;
    text += "- " + describe(o) + ": " +
            (o.launches == 0       ? "never struck"
             : o.rows_changed == 0 ? "equal bits in " + std::to_string(o.launches) + " launches"
                                   : std::to_string(o.rows_changed) + " rows changed, each within the op's bound") +
            "\n";
  }
  return text;
}

std::vector<std::string> complaints(const std::vector<Outcome>& outcomes, bool whole) {
  std::vector<std::string> out;
  std::map<std::string, int> counted;
  int all = 0, right_op = 0;
  for (const Outcome& o : outcomes) {
    counted[o.planted.kind()] += o.found;
    all += o.found;
    right_op += o.right_op;
    const std::string why = shortcoming(o);
    if (!why.empty()) out.push_back(describe(o) + ": " + why);
  }
  if (right_op < 0.95 * all)
    out.push_back("the right op was named in " + std::to_string(right_op) + " of " + std::to_string(all));
  if (!whole) return out;
  if (all < kWantedInAll) out.push_back("only " + std::to_string(all) + " faults count");
  for (const auto& [kind, count] : counted)
    if (count < kWantedOfAKind) out.push_back(kind + ": only " + std::to_string(count) + " count");
  return out;
}

}  // namespace plumb::matrix
