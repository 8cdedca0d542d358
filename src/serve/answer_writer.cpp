#include "serve/answer_writer.h"

#include "base/hash.h"
#include "serve/generate_writer.h"
#include "serve/messages_writer.h"
#include "serve/openai_response.h"
#include "serve/responses_writer.h"

namespace plumb {

std::unique_ptr<AnswerWriter> make_writer(ResponseFacts facts) {
  switch (facts.endpoint) {
    case Endpoint::Messages:
      return std::make_unique<MessagesWriter>(std::move(facts));
    case Endpoint::Responses:
      return std::make_unique<ResponsesWriter>(std::move(facts));
    case Endpoint::Generate:
      return std::make_unique<GenerateWriter>(std::move(facts));
    case Endpoint::Chat:
    case Endpoint::Completion:
      break;
  }
  return std::make_unique<OpenAiWriter>(std::move(facts));
}

HttpResponse refusal(Endpoint endpoint, const ApiError& error) {
  HttpResponse response = error_response(error);
  if (endpoint == Endpoint::Messages) response.body = messages_error_json(error);
  return response;
}

int64_t count_characters(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

void append_ids(std::string& out, const std::vector<int32_t>& ids) {
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i) out.append(i != 0 ? "," : "").append(std::to_string(ids[i]));
  out += ']';
}

std::string call_id(std::string_view answer_id, int choice, int call) {
  Hash64 id;
  id.add(answer_id).add(static_cast<uint64_t>(choice)).add(static_cast<uint64_t>(call));
  return "call_" + id.hex();
}

}  // namespace plumb
