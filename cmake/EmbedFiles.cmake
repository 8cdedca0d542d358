# cmake -D OUT=x.cpp -D FILES=a;b -P EmbedFiles.cmake: a C++ file whose plumb::embedded_files() lists them by name.
set(arrays "")
set(entries "")
set(number 0)
foreach(path IN LISTS FILES)
  get_filename_component(name ${path} NAME)
  file(READ ${path} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(APPEND arrays "const unsigned char kFile${number}[] = {${bytes}0};\n")
  string(APPEND entries "  {\"${name}\", {reinterpret_cast<const char*>(kFile${number}), sizeof kFile${number} - 1}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT}.new "#include \"serve/web_files.h\"\n\nnamespace plumb {\n\nnamespace {\n\n${arrays}
const EmbeddedFile kFiles[] = {\n${entries}};\n\n}  // namespace\n
std::span<const EmbeddedFile> embedded_files() { return kFiles; }\n\n}  // namespace plumb\n")
file(RENAME ${OUT}.new ${OUT})
