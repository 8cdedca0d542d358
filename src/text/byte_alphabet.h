// The GPT-2 byte alphabet (model.md section 5): every byte as one printable character, so that a vocabulary is text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace plumb {

// The characters stand for bytes; nullopt when one of them is outside the alphabet.
std::optional<std::string> bytes_from_alphabet(std::string_view text);
std::string bytes_to_alphabet(std::string_view bytes);

}  // namespace plumb
