#include "base/result.h"

namespace plumb {

int exit_code(Code code) {
  switch (code) {
    case Code::Usage:
    case Code::NotFound:
    case Code::Environment:
    case Code::Cancelled:
      return 1;
    case Code::Unsupported:
      return 2;
    case Code::Verification:
      return 3;
    case Code::Corrupt:
      return 4;
    case Code::Peer:
      return 5;
    case Code::Internal:
      return 70;
  }
  return 70;
}

std::string_view code_name(Code code) {
  switch (code) {
    case Code::Usage:
      return "usage";
    case Code::NotFound:
      return "not_found";
    case Code::Environment:
      return "environment";
    case Code::Unsupported:
      return "unsupported";
    case Code::Verification:
      return "verification";
    case Code::Corrupt:
      return "corrupt";
    case Code::Peer:
      return "peer";
    case Code::Cancelled:
      return "cancelled";
    case Code::Internal:
      return "internal";
  }
  return "internal";
}

std::string Error::to_string() const {
  std::string text = what;
  if (!why.empty()) text += "\n  " + why;
  if (!works.empty()) {
    text += "\n  works instead: ";
    for (size_t i = 0; i < works.size(); ++i) text += (i != 0 ? ", " : "") + works[i];
  }
  return text;
}

Error Error::in(std::string_view context) && {
  what = std::string(context) + ": " + what;
  return std::move(*this);
}

}  // namespace plumb
