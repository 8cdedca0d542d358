# Flags and helpers shared by every target.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(PLUMB_CCACHE ccache)
if(PLUMB_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PLUMB_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${PLUMB_CCACHE})
endif()

find_package(Threads REQUIRED)

# -Wno-restrict: g++ 12 warns falsely on std::string concatenation (GCC bug 105651).
add_library(plumb_flags INTERFACE)
target_compile_options(plumb_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -ffp-contract=off>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
if(NOT CMAKE_UNITY_BUILD)  # where names of several sources meet
  target_compile_options(plumb_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wshadow>)
endif()
if(PLUMB_WERROR)
  target_compile_options(plumb_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
target_include_directories(plumb_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(plumb_flags INTERFACE Threads::Threads)
if(PLUMB_SANITIZE)
  target_compile_options(plumb_flags INTERFACE
    -fsanitize=${PLUMB_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(plumb_flags INTERFACE -fsanitize=${PLUMB_SANITIZE})
  if(PLUMB_SANITIZE MATCHES "undefined")
    # clang 14 can't assemble coroutines with the check of called functions' types.
    target_compile_options(plumb_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=function>)
  endif()
  if(PLUMB_SANITIZE MATCHES "thread")
    # Boost.Asio has fences, which g++ can't instrument; Asio's queues are guarded by mutexes, which it can.
    target_compile_options(plumb_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-tsan>)
  endif()
endif()
if(PLUMB_FUZZ)
  target_compile_options(plumb_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# plumb_library(NAME [DEPS target...]): static library plumb_NAME from every .cpp of the calling folder.
function(plumb_library name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(sources)
    add_library(plumb_${name} STATIC ${sources})
    target_link_libraries(plumb_${name} PUBLIC plumb_flags ${ARG_DEPS})
  else()
    add_library(plumb_${name} INTERFACE)
    target_link_libraries(plumb_${name} INTERFACE plumb_flags ${ARG_DEPS})
  endif()
endfunction()

# plumb_test(NAME [DEPS target...]): GoogleTest binary test_NAME from every .cpp of the calling folder.
function(plumb_test name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} ${sources})
  set_target_properties(test_${name} PROPERTIES UNITY_BUILD OFF)  # tests of one folder share names
  target_link_libraries(test_${name} PRIVATE plumb_flags plumb_test_support ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  # What tests do themselves takes little time; compiled like what they test they took half as long again to compile.
  target_compile_options(test_${name} PRIVATE $<IF:$<CONFIG:Release>,-O1,-O0>)
  add_test(NAME ${name} COMMAND test_${name})
  set_property(GLOBAL APPEND PROPERTY PLUMB_TESTS test_${name})
endfunction()

# plumb_script_test(NAME COMMAND program [argument...]): a test that is a program. Exit code 0 passed, 77 skipped (its
# last line is the reason), anything else failed; a last line "N passed, N failed" counts as that many tests.
function(plumb_script_test name)
  cmake_parse_arguments(ARG "" "" "COMMAND" ${ARGN})
  add_test(NAME ${name} COMMAND ${ARG_COMMAND})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  set(quoted "")
  foreach(word IN LISTS ARG_COMMAND)
    if(TARGET ${word})
      set(word "$<TARGET_FILE:${word}>")
    elseif("${word}" STREQUAL "${Python3_EXECUTABLE}")
      set(word "@python")  # the one that runs tools/run_tests.py: it has the test packages
    endif()
    list(APPEND quoted "\"${word}\"")
  endforeach()
  list(JOIN quoted ", " quoted)
  set_property(GLOBAL APPEND_STRING PROPERTY PLUMB_SCRIPT_TESTS
    ",\n  {\"name\": \"${name}\", \"kind\": \"script\", \"command\": [${quoted}]}")
endfunction()

# tests.json in the build folder: what tools/run_tests.py runs.
function(plumb_write_test_list)
  get_property(binaries GLOBAL PROPERTY PLUMB_TESTS)
  get_property(scripts GLOBAL PROPERTY PLUMB_SCRIPT_TESTS)
  set(entries "")
  foreach(binary IN LISTS binaries)
    string(APPEND entries
      ",\n  {\"name\": \"${binary}\", \"kind\": \"gtest\", \"command\": [\"$<TARGET_FILE:${binary}>\"]}")
  endforeach()
  string(APPEND entries "${scripts}")
  string(REGEX REPLACE "^,\n" "" entries "${entries}")
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/tests.json CONTENT "[\n${entries}\n]\n")
endfunction()
