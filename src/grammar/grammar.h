// A compiled constraint over a vocabulary, and one text's place in it. The automaton with its stacks is made
// deterministic as texts walk through it: a state, its steps and its token mask are worked out once, when a text first
// gets there, and shared by all texts of the grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "grammar/automaton.h"
#include "grammar/vocabulary.h"

namespace plumb::grammar {

class Cursor;

class Grammar {
 public:
  Grammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary);
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  // Works out states and masks ahead, nearest to the start first, for at most this long.
  void warm_up(int64_t microseconds);
  // For tests: how much may be remembered, in words of 32 bits.
  void set_memory(size_t words) { max_words_ = words; }
  // For tests: whether a whole text, given as bytes, satisfies the constraint.
  bool matches(std::string_view text);

 private:
  friend class Cursor;
  static constexpr int32_t kDead = -1, kUnknown = -2;
  // A state of the automaton with the calls open around it: a linked list, shared and unique.
  struct Frame {
    int32_t target = 0, parent = 0;  // frame 0 is the bottom
  };
  struct Item {
    int32_t state = 0, frame = 0;
    friend auto operator<=>(const Item&, const Item&) = default;  // NOLINT(modernize-use-nullptr): as in StepShape
  };
  static uint64_t item_key(const Item& item) {
    return static_cast<uint64_t>(static_cast<uint32_t>(item.state)) << 32 | static_cast<uint32_t>(item.frame);
  }
  // What a state is before a symbol: its own part without jumps. Filled on first use.
  struct Closure {
    bool known = false, ends = false;
    std::vector<int32_t> with_edges{};
    std::vector<Automaton::Call> calls{};
  };
  struct Place {
    int32_t first_item = 0, item_count = 0;
    int32_t mask = -1;  // of masks_
    int8_t run[kCharClasses] = {-1, -1,
                                -1};  // characters of a class that may follow, whichever; at most kMaxSliceChars
    bool may_end = false;
    bool costly = false;  // its mask would take too long: the text is given up
  };

  const Closure& closure(int32_t state);
  void expand(int32_t state, int32_t frame, bool& may_end);
  int32_t frame(int32_t target, int32_t parent);
  int32_t place(bool may_end);
  int32_t step(int32_t place, int symbol);
  int32_t step_token(int32_t place, int32_t id);
  const std::vector<int32_t>& after_char(int32_t place, CharClass which);
  bool after_more_bytes(int32_t from, int more, std::vector<int32_t>& out);
  template <class Visit>
  bool each_kind(int low, int high, const Visit& visit) const;
  int run_of(int32_t place, CharClass which);
  bool all_below(const TokenTrie::Node& node, int32_t place);
  const std::vector<uint32_t>& mask_of(int32_t place);
  void walk(const TokenTrie& trie, int32_t place, std::vector<uint32_t>& mask);
  void reset();  // the start alone
  void forget_if_large();

  const Automaton automaton_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  std::vector<char> is_end_{};        // of a rule, by state
  std::vector<uint16_t> class_of_{};  // symbol -> class of symbols that no edge tells apart
  std::vector<int> sample_of_{};      // class -> one of its symbols
  std::mutex mutex_{};                // guards what follows
  std::vector<Closure> closures_{};
  std::vector<Frame> frames_{};
  std::unordered_map<uint64_t, int32_t> frame_index_{};
  std::vector<Item> items_{};
  std::vector<Place> places_{};
  std::unordered_multimap<uint64_t, int32_t> place_index_{};
  std::vector<int32_t> steps_{};                                    // [places, classes]
  std::unordered_map<int64_t, std::vector<int32_t>> after_char_{};  // by place and class
  std::vector<std::vector<uint32_t>> masks_{};
  std::unordered_multimap<uint64_t, int32_t> mask_index_{};
  std::unordered_set<uint64_t> reached_keys_{};
  size_t work_ = 0;                        // of the mask being worked out
  size_t max_words_ = size_t{16} << 20;    // of steps, items and frames; beyond, they are worked out again
  std::vector<Item> found_{}, reached_{};  // of one step, kept for their memory
  std::vector<Cursor*> cursors_{};         // their places survive forgetting
};

// Where one text stands. Any thread, one at a time.
class Cursor {
 public:
  explicit Cursor(std::shared_ptr<Grammar> grammar);
  ~Cursor();
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;

  // Takes a token into the text; false, and no change, when it may not follow.
  bool accept(int32_t id);
  // The text so far is a whole one.
  bool may_end() const;

  struct Next {
    bool possible = false;  // some token may follow, and which was found in time
    bool may_end = false;
    bool reached = true;  // false: `ahead` itself is not allowed, the rest says nothing
  };
  // What may follow the text and the tokens `ahead` of it: writes the words of `mask`, zero beyond the vocabulary.
  Next next(std::span<const int32_t> ahead, std::span<uint32_t> mask);

 private:
  friend class Grammar;
  std::shared_ptr<Grammar> grammar_;
  int32_t place_ = 0;
};

}  // namespace plumb::grammar
