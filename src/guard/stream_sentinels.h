// Sentinels of a device's steps, which are replayed and not launched: what they do is put into the stream with the ops,
// so a recording holds it. They tell which rows went bad, and the first op whose output showed it; the step is then run
// once more under the eyes of Sentinels, which tell the rest.
#pragma once

#include <vector>

#include "guard/sentinels.h"

namespace plumb {

class StreamSentinels final : public OpObserver {
 public:
  // `report`: [rows of the largest step, 2] i32 on the device, of which the marks are the second column.
  // What is found goes into `table`, which hears of passes from here while it does not watch itself.
  StreamSentinels(Sentinels& table, const Tensor& report) : table_(table), report_(report) {}

  Watching watching() const override { return Watching::InStream; }
  void begin_pass(const Paging& rows) override;
  void before(const OpCall& call, Executor& executor) override;
  void after(const OpCall& call, Executor& executor) override;
  void end_pass(Executor& executor) override { look(executor); }

  // The report of the pass that has just run, in host memory. True: rows of it are marked.
  bool note(const Plan& plan, const Tensor& report);

 private:
  void look(Executor& executor);

  Sentinels& table_;
  const Tensor report_;
  struct Written {
    ScanPiece piece{};
    bool passed_on = false;  // an op has read it whose own output is bad in the same rows then
  };
  std::vector<Written> written_{};  // since the last look
  int looked_in_ = -1;              // the layer of the last look that something about to be lost asked for
  bool cleared_ = false;
  int ops_ = 0;  // of the pass
};

}  // namespace plumb
