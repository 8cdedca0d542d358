#include "grammar/grammar.h"

#include <algorithm>
#include <chrono>
#include <set>

namespace plumb::grammar {

namespace {

// Steps of the automaton that one mask may take, some tens of milliseconds: an ambiguous pattern costs its own request,
// not the time of all.
constexpr size_t kMaxWork = 3'000'000;
constexpr size_t kFewItems = 32;  // so many are searched one by one
// A subtree of fewer nodes is walked rather than asked about.
constexpr size_t kWorthAsking = 8;
// Beyond these words masks are forgotten and worked out again: 32 MiB of each grammar.
constexpr size_t kMaxMaskWords = size_t{8} << 20;

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  return hash * 0xbf58476d1ce4e5b9u;
}

}  // namespace

Grammar::Grammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary)
    : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)) {
  const size_t symbols = kFirstTag + vocabulary_->tags().size();
  std::vector<char> border(symbols + 1, 0);
  for (size_t s = kFirstTag; s < symbols; ++s) border[s] = 1;
  for (const Automaton::State& state : automaton_.states) {
    for (const Automaton::Edge& edge : state.edges) {
      border[static_cast<size_t>(edge.low)] = border[static_cast<size_t>(edge.high) + 1] = 1;
    }
  }
  border[0] = 1;
  class_of_.resize(symbols);
  for (size_t s = 0; s < symbols; ++s) {
    if (border[s] != 0) sample_of_.push_back(static_cast<int>(s));
    class_of_[s] = static_cast<uint16_t>(sample_of_.size() - 1);
  }
  closures_.resize(automaton_.states.size());
  is_end_.resize(automaton_.states.size(), 0);
  for (const int32_t end : automaton_.rule_end) is_end_[static_cast<size_t>(end)] = 1;
  reset();
}

void Grammar::reset() {
  frames_.assign(1, {-1, -1});
  frame_index_.clear();
  items_.clear();
  places_.clear();
  place_index_.clear();
  steps_.clear();
  after_char_.clear();
  masks_.clear();
  mask_index_.clear();
  bool may_end = false;
  found_.clear();
  work_ = 0;
  expand(automaton_.rule_start[static_cast<size_t>(automaton_.root)], 0, may_end);
  place(may_end);
  places_[0].costly = work_ >= kMaxWork;
}

const Grammar::Closure& Grammar::closure(int32_t state) {
  Closure& out = closures_[static_cast<size_t>(state)];
  if (out.known) return out;
  out.known = true;
  std::vector<int32_t> open{state};
  std::set<int32_t> seen{state};
  while (!open.empty()) {
    const int32_t at = open.back();
    open.pop_back();
    const Automaton::State& s = automaton_.states[static_cast<size_t>(at)];
    if (!s.edges.empty()) out.with_edges.push_back(at);
    out.calls.insert(out.calls.end(), s.calls.begin(), s.calls.end());
    out.ends = out.ends || is_end_[static_cast<size_t>(at)] != 0;
    for (const int32_t target : s.jumps) {
      if (seen.insert(target).second) open.push_back(target);
    }
  }
  return out;
}

int32_t Grammar::frame(int32_t target, int32_t parent) {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(target)) << 32 | static_cast<uint32_t>(parent);
  const auto [entry, fresh] = frame_index_.try_emplace(key, static_cast<int32_t>(frames_.size()));
  if (fresh) frames_.push_back({target, parent});
  return entry->second;
}

// Adds to found_ what (state, frame) is before the next symbol: through calls downwards and ends upwards.
void Grammar::expand(int32_t state, int32_t first_frame, bool& may_end) {
  reached_.assign(1, {state, first_frame});
  reached_keys_.clear();
  const auto reach = [&](Item item) {
    const bool many = reached_.size() >= kFewItems;
    if (many && reached_keys_.empty()) {
      for (const Item& known : reached_) reached_keys_.insert(item_key(known));
    }
    const bool fresh =
        many ? reached_keys_.insert(item_key(item)).second : std::ranges::find(reached_, item) == reached_.end();
    if (fresh) reached_.push_back(item);
  };
  for (size_t i = 0; i < reached_.size() && work_ < kMaxWork; ++i) {
    work_ += 4;
    const Item at = reached_[i];
    const Closure& c = closure(at.state);
    for (const int32_t s : c.with_edges) found_.push_back({s, at.frame});
    for (const Automaton::Call& call : c.calls) {
      const Closure& after = closure(call.target);
      // Nothing is left to do after the call: the stack need not grow.
      const bool last = after.ends && after.with_edges.empty() && after.calls.empty();
      reach({automaton_.rule_start[static_cast<size_t>(call.rule)], last ? at.frame : frame(call.target, at.frame)});
    }
    if (!c.ends) continue;
    if (at.frame == 0) {
      may_end = true;
    } else {
      const Frame& f = frames_[static_cast<size_t>(at.frame)];
      reach({f.target, f.parent});
    }
  }
}

// The place of the items found_.
int32_t Grammar::place(bool may_end) {
  std::vector<Item>& items = found_;
  if (items.empty() && !may_end) return kDead;
  std::ranges::sort(items);
  items.erase(std::unique(items.begin(), items.end()), items.end());
  uint64_t hash = may_end ? 1 : 2;
  for (const Item& item : items) {
    hash = mix(hash, item_key(item));
  }
  const auto [begin, end] = place_index_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Place& p = places_[static_cast<size_t>(it->second)];
    const std::span have(items_.data() + p.first_item, static_cast<size_t>(p.item_count));
    if (p.may_end == may_end && std::ranges::equal(have, items)) return it->second;
  }
  const auto index = static_cast<int32_t>(places_.size());
  places_.push_back({.first_item = static_cast<int32_t>(items_.size()),
                     .item_count = static_cast<int32_t>(items.size()),
                     .may_end = may_end});
  items_.insert(items_.end(), items.begin(), items.end());
  steps_.resize(steps_.size() + sample_of_.size(), kUnknown);
  place_index_.emplace(hash, index);
  return index;
}

int32_t Grammar::step(int32_t from, int symbol) {
  const size_t at = static_cast<size_t>(from) * sample_of_.size() + class_of_[static_cast<size_t>(symbol)];
  if (steps_[at] != kUnknown) return steps_[at];
  found_.clear();
  bool may_end = false;
  const Place p = places_[static_cast<size_t>(from)];
  for (int32_t i = 0; i < p.item_count; ++i) {
    const Item item = items_[static_cast<size_t>(p.first_item) + static_cast<size_t>(i)];
    const std::vector<Automaton::Edge>& edges = automaton_.states[static_cast<size_t>(item.state)].edges;
    work_ += edges.size();
    for (const Automaton::Edge& edge : edges) {
      if (edge.low <= symbol && symbol <= edge.high) expand(edge.target, item.frame, may_end);
    }
  }
  if (work_ >= kMaxWork) return kDead;  // not known, and not remembered
  const int32_t to = place(may_end);
  return steps_[at] = to;
}

int32_t Grammar::step_token(int32_t from, int32_t id) {
  if (id < 0 || id >= vocabulary_->size()) return kDead;
  if (const int tag = vocabulary_->tag_of(id); tag >= 0) return step(from, kFirstTag + tag);
  const std::string_view bytes = vocabulary_->bytes(id);
  if (bytes.empty()) return kDead;
  for (size_t i = 0; i < bytes.size() && from != kDead; ++i) from = step(from, static_cast<unsigned char>(bytes[i]));
  return from;
}

// One symbol of each class of symbols between `low` and `high`, as long as `visit` says true.
template <class Visit>
bool Grammar::each_kind(int low, int high, const Visit& visit) const {
  for (int c = low; c <= high; ++c) {
    const bool seen = c > low && class_of_[static_cast<size_t>(c)] == class_of_[static_cast<size_t>(c) - 1];
    if (!seen && !visit(c)) return false;
  }
  return true;
}

// The places after `more` continuation bytes, each once in `out`; false when one of them may not follow.
bool Grammar::after_more_bytes(int32_t from, int more, std::vector<int32_t>& out) {
  if (from == kDead) return false;
  if (more > 0) return each_kind(0x80, 0xbf, [&](int c) { return after_more_bytes(step(from, c), more - 1, out); });
  if (std::ranges::find(out, from) == out.end()) out.push_back(from);
  return true;
}

// The places after one character of the class, each once; empty when some such character may not follow.
const std::vector<int32_t>& Grammar::after_char(int32_t from, CharClass which) {
  const int64_t key = static_cast<int64_t>(from) * kCharClasses + static_cast<int64_t>(which);
  if (const auto known = after_char_.find(key); known != after_char_.end()) return known->second;
  std::vector<int32_t> out;
  bool all = true;
  for (int low = 0; low < 0x80 && all; ++low) {  // runs of characters of the class
    if (!in_class(which, static_cast<unsigned char>(low))) continue;
    int high = low;
    while (in_class(which, static_cast<unsigned char>(high + 1))) ++high;
    all = each_kind(low, high, [&](int c) { return after_more_bytes(step(from, c), 0, out); });
    low = high;
  }
  for (const Utf8Form& form : kUtf8Forms) {
    if (which != CharClass::Harmless || !all) break;
    all = each_kind(form.lead_low, form.lead_high, [&](int lead) {
      const int32_t one = step(from, lead);
      return one != kDead && each_kind(form.second_low, form.second_high,
                                       [&](int second) { return after_more_bytes(step(one, second), form.more, out); });
    });
  }
  if (!all) out.clear();
  return after_char_[key] = std::move(out);
}

int Grammar::run_of(int32_t from, CharClass which) {
  const auto at = static_cast<size_t>(which);
  if (const int8_t known = places_[static_cast<size_t>(from)].run[at]; known >= 0) return static_cast<uint8_t>(known);
  std::set<int32_t> seen{from};
  std::vector<int32_t> now{from}, next;
  int run = 0;
  for (bool all = true; run < Vocabulary::kMaxSliceChars && seen.size() < 256 && work_ < kMaxWork; ++run) {
    next.clear();
    for (const int32_t p : now) {
      const std::vector<int32_t>& after = after_char(p, which);
      all = all && !after.empty();
      for (const int32_t q : after)
        if (seen.insert(q).second) next.push_back(q);
    }
    if (!all) break;
    if (next.empty()) run = Vocabulary::kMaxSliceChars - 1;  // no new place: so it goes on for ever
    now.swap(next);
  }
  places_[static_cast<size_t>(from)].run[at] = static_cast<int8_t>(run);
  return run;
}

// Whether every token below a node may follow, without a look at each: enough characters of its kind may.
bool Grammar::all_below(const TokenTrie::Node& node, int32_t at) {
  for (int k = 0; k < kCharClasses; ++k) {
    if ((node.pure >> k & 1u) != 0 && run_of(at, static_cast<CharClass>(k)) >= node.height) return true;
  }
  return false;
}

void Grammar::walk(const TokenTrie& trie, int32_t from, std::vector<uint32_t>& mask) {
  std::vector<int32_t> path(vocabulary_->longest() + 1, from);
  const size_t count = trie.nodes.size();
  for (size_t i = 0; i < count && work_ < kMaxWork;) {
    const TokenTrie::Node& node = trie.nodes[i];
    const int32_t to = step(path[node.depth - 1u], node.byte);
    if (to == kDead) {
      i = static_cast<size_t>(node.end);
      continue;
    }
    path[node.depth] = to;
    const auto end = static_cast<size_t>(node.end);
    const bool whole = end - i > kWorthAsking && node.pure != 0 && all_below(node, to);
    const auto last = !whole         ? static_cast<size_t>(node.first_token + node.token_count)
                      : end == count ? trie.tokens.size()
                                     : static_cast<size_t>(trie.nodes[end].first_token);
    for (auto t = static_cast<size_t>(node.first_token); t < last; ++t) {
      const int32_t id = trie.tokens[t];
      mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
    i = whole ? end : i + 1;
  }
}

const std::vector<uint32_t>& Grammar::mask_of(int32_t from) {
  if (const int32_t known = places_[static_cast<size_t>(from)].mask; known >= 0) {
    return masks_[static_cast<size_t>(known)];
  }
  work_ = places_[static_cast<size_t>(from)].costly ? kMaxWork : 0;
  const auto& slices = vocabulary_->slices();
  const auto slice =
      std::ranges::find_if(slices, [&](const Vocabulary::Slice& s) { return s.max_chars <= run_of(from, s.of); });
  std::vector<uint32_t> mask = slice == slices.end() ? std::vector<uint32_t>(vocabulary_->words(), 0) : slice->mask;
  walk(slice == slices.end() ? vocabulary_->all() : slice->rest, from, mask);
  for (size_t t = 0; t < vocabulary_->tags().size(); ++t) {
    const int32_t id = vocabulary_->tags()[t].id;
    const bool allowed = step(from, kFirstTag + static_cast<int>(t)) != kDead;
    if (allowed) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  if (work_ >= kMaxWork) {
    places_[static_cast<size_t>(from)].costly = true;
    std::ranges::fill(mask, 0u);
  }
  uint64_t hash = 0;
  for (const uint32_t word : mask) hash = mix(hash, word);
  int32_t index = -1;
  const auto [begin, end] = mask_index_.equal_range(hash);
  for (auto it = begin; it != end && index < 0; ++it) {
    if (masks_[static_cast<size_t>(it->second)] == mask) index = it->second;
  }
  if (index < 0) {
    index = static_cast<int32_t>(masks_.size());
    masks_.push_back(std::move(mask));
    mask_index_.emplace(hash, index);
  }
  places_[static_cast<size_t>(from)].mask = index;
  return masks_[static_cast<size_t>(index)];
}

// Between two tokens: cursors keep their places, everything else is worked out again when it is needed.
void Grammar::forget_if_large() {
  if (steps_.size() + 2 * (items_.size() + frames_.size()) < max_words_ &&
      masks_.size() * vocabulary_->words() < kMaxMaskWords)
    return;
  struct Kept {
    Cursor* cursor = nullptr;
    std::vector<std::pair<int32_t, std::vector<int32_t>>> items{};  // state, targets of its frames from the bottom
    bool may_end = false;
  };
  std::vector<Kept> kept;
  for (Cursor* cursor : cursors_) {
    const Place& p = places_[static_cast<size_t>(cursor->place_)];
    Kept& k = kept.emplace_back(Kept{.cursor = cursor, .may_end = p.may_end});
    for (int32_t i = 0; i < p.item_count; ++i) {
      const Item& item = items_[static_cast<size_t>(p.first_item) + static_cast<size_t>(i)];
      auto& targets = k.items.emplace_back(item.state, std::vector<int32_t>{}).second;
      for (int32_t f = item.frame; f != 0; f = frames_[static_cast<size_t>(f)].parent) {
        targets.push_back(frames_[static_cast<size_t>(f)].target);
      }
      std::ranges::reverse(targets);
    }
  }
  reset();
  for (const Kept& k : kept) {
    found_.clear();
    for (const auto& [state, targets] : k.items) {
      int32_t at = 0;
      for (const int32_t target : targets) at = frame(target, at);
      found_.push_back({state, at});
    }
    k.cursor->place_ = place(k.may_end);
  }
}

void Grammar::warm_up(int64_t microseconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
  const std::lock_guard lock(mutex_);
  // New places are numbered as they are found, so this goes outwards from the start.
  for (size_t i = 0; i < places_.size() && std::chrono::steady_clock::now() < deadline; ++i) {
    (void)mask_of(static_cast<int32_t>(i));
  }
}

bool Grammar::matches(std::string_view text) {
  const std::lock_guard lock(mutex_);
  int32_t at = 0;
  work_ = 0;
  for (size_t i = 0; i < text.size() && at != kDead; ++i) at = step(at, static_cast<unsigned char>(text[i]));
  return at != kDead && places_[static_cast<size_t>(at)].may_end;
}

Cursor::Cursor(std::shared_ptr<Grammar> grammar) : grammar_(std::move(grammar)) {
  const std::lock_guard lock(grammar_->mutex_);
  grammar_->cursors_.push_back(this);
}

Cursor::~Cursor() {
  const std::lock_guard lock(grammar_->mutex_);
  std::erase(grammar_->cursors_, this);
}

bool Cursor::accept(int32_t id) {
  const std::lock_guard lock(grammar_->mutex_);
  grammar_->forget_if_large();
  grammar_->work_ = 0;
  const int32_t to = grammar_->step_token(place_, id);
  if (to == Grammar::kDead) return false;
  place_ = to;
  return true;
}

bool Cursor::may_end() const {
  const std::lock_guard lock(grammar_->mutex_);
  return grammar_->places_[static_cast<size_t>(place_)].may_end;
}

Cursor::Next Cursor::next(std::span<const int32_t> ahead, std::span<uint32_t> mask) {
  const std::lock_guard lock(grammar_->mutex_);
  int32_t at = place_;
  grammar_->work_ = 0;
  for (const int32_t id : ahead) {
    at = grammar_->step_token(at, id);
    if (at == Grammar::kDead) return {.reached = false};
  }
  const std::vector<uint32_t>& words = grammar_->mask_of(at);
  const size_t shared = std::min(mask.size(), words.size());
  std::copy_n(words.begin(), shared, mask.begin());
  std::fill(mask.begin() + static_cast<ptrdiff_t>(shared), mask.end(), 0u);
  const Grammar::Place& place = grammar_->places_[static_cast<size_t>(at)];
  return {.possible = std::ranges::any_of(mask, [](uint32_t word) { return word != 0; }),
          .may_end = place.may_end && !place.costly};
}

}  // namespace plumb::grammar
