#!/usr/bin/env bash
# Proves and times the CUDA backend on the GPU of this machine, in one go.
#
# usage: tools/device_check.sh BIN [PART ...]
# BIN: a folder with plumb, test_kernels, rank_kernels, test_engine, test_model and plumb_cuda_bench, and the libraries they need
# beside them.
# PARTS (default: all but sanitize), each with its own time limit:
#   contracts  every CUDA kernel against its contract      engine    the engine's tests on the device
#   goldens    goldens of the model, f32 caches            server    task accuracies through the HTTP server
#   ranks      kernels between ranks, goldens and a server of two ranks; all may share the GPU
#   bench      kernels on GLM-5 shapes                      decode    decode steps of three layers of GLM-5
#   sanitize   compute-sanitizer memcheck and racecheck over the contract tests of kernels that share memory
# Ends with exit code 1 when a part failed; logs go to $OUT, or ./device_check.
# Functions are called by name from the list of parts.
# shellcheck disable=SC2317
set -u
bin=${1:?usage: tools/device_check.sh BIN [PART ...]}
shift
parts=${*:-contracts engine goldens server bench decode}
out=${OUT:-device_check}
root=$(cd "$(dirname "$0")/.." && pwd)
model=$root/models/tiny-glm-dsa-nvfp4
export LD_LIBRARY_PATH=$bin:${LD_LIBRARY_PATH:-}
export PLUMB_TEST_DATA=${PLUMB_TEST_DATA:-}
mkdir -p "$out"
failed=""

# part NAME SECONDS LINES COMMAND...: prints the last LINES lines of what it said
part() {
  local name=$1 limit=$2 lines=$3 begin=$SECONDS
  shift 3
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  local rc=$?
  echo "== $name: exit code $rc, $((SECONDS - begin)) s"
  [ $rc -eq 0 ] || failed="$failed $name"
  tail -n "$lines" "$out/$name.log"
}

http() {
  python3 -c 'import sys, urllib.request as u; print(u.urlopen("http://127.0.0.1:18123" + sys.argv[1]).read().decode())' \
    "$1" 2>/dev/null
}

serve() {
  "$bin/plumb" serve "$model" --backend cuda --port 18123 --draft-tokens "$@" >"$out/serve.log" 2>&1 &
  local server=$! rc
  for _ in $(seq 60); do
    http /health >/dev/null && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.5
  done
  python3 "$root/tools/accuracy/run.py" --port 18123 --format nvfp4
  rc=$?
  http /metrics | grep -E '^plumb_(steps|drafts|numerical|generated)' || true
  kill -INT "$server"
  wait "$server" || rc=1
  [ "$rc" -eq 0 ] || tail -5 "$out/serve.log"
  return "$rc"
}

decode() {
  local folder=${TMPDIR:-/tmp}/device_check_model
  "$bin/plumb" synth "$root/bench/$1" --format "$2" --no-mtp --out "$folder" >/dev/null || return 1
  for rows in 1 8 64; do
    "$bin/plumb" bench decode "$folder" --backend cuda --kv fp8 --index-keys fp8 --rows "$rows" --prompt-tokens 4096 \
      --pairs 20 || return 1
  done
  rm -rf "$folder"
}

export -f http serve decode
export bin out root model
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
for p in $parts; do
  case $p in
    contracts) part contracts 300 25 "$bin/test_kernels" --gtest_filter="*cuda*:SumOrder*" --gtest_brief=1 ;;
    engine)
      part memory 60 5 "$bin/test_model" --gtest_filter="DeviceMemory.*" --gtest_brief=1
      part engine 240 25 "$bin/test_engine" --gtest_filter="*/cuda" --gtest_brief=1
      ;;
    goldens)
      part goldens 120 25 python3 "$root/tools/golden/check_backend.py" "$bin/plumb" --backend cuda --kv f32 \
        --index-keys f32 --activations f32
      ;;
    server)
      part server 90 20 bash -c "serve 0"
      part server_drafts 90 20 bash -c "serve 2"
      ;;
    ranks)
      golden=("$root/tools/golden/check_backend.py" "$bin/plumb" --backend cuda --kv f32 --index-keys f32 --activations f32
        --tp 2 --share-gpus)
      part rank_kernels 240 25 python3 "$root/tests/kernels/rank_kernels_test.py" "$bin/rank_kernels"
      part goldens_tp2 180 25 python3 "${golden[@]}"
      part goldens_ep2 180 25 python3 "${golden[@]}" --expert-parallel
      part server_tp2 120 20 bash -c "serve 2 --tp 2 --share-gpus"
      ;;
    bench) part bench 200 200 "$bin/plumb_cuda_bench" "${BENCH:-all}" ;;
    decode) part decode 240 40 bash -c "decode ${DECODE:-glm5-layers} ${DECODE_FORMAT:-nvfp4}" ;;
    sanitize)
      for tool in memcheck racecheck; do
        part "$tool" 240 15 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/test_kernels" \
          --gtest_filter="${SANITIZE:-*topk*cuda*:*sample_block*:*router_warp*:*indexer*mma*:*mla_attend*mma*}" --gtest_brief=1
      done
      ;;
    *) echo "no part '$p'" && exit 2 ;;
  esac
done
[ -z "$failed" ] && echo "all parts passed" && exit 0
echo "failed:$failed"
exit 1
