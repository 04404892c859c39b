# Three images (docs/containers.md):
#   docker build --target cpu -t offhook:cpu .       the embedded engines, and clients of workers
#   docker build --target cpu-engines -t offhook:cpu-engines --build-arg TORCH_INDEX=ADDRESS .
#                                                    with sherpa-onnx, Nemotron and Pocket TTS
#   docker build --target cuda -t offhook:cuda .     with torch, for an NVIDIA GPU
#
# All stand on Debian with Python, which is an argument so that a mirror can serve it: it needs apt,
# and Python 3.11 to 3.13 (PocketSphinx has no wheel for 3.14) with pip, venv and headers. An
# nvidia/cuda image would only add a second copy of what torch's wheels bring in the very versions
# they were built with: the CUDA runtime, cuBLAS, cuDNN, NVRTC. The driver is the host's in any case.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm


FROM ${PYTHON_IMAGE} AS base
COPY deploy/debian-packages.txt /tmp/
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        libjemalloc2 $(sed 's/#.*//' /tmp/debian-packages.txt) \
    && rm -rf /tmp/debian-packages.txt /var/lib/apt/lists/* /var/cache/* /var/log/*
# Folders that outlive a container: a named volume takes over their owner.
RUN useradd --uid 10001 --user-group --create-home --home-dir /var/lib/offhook offhook \
    && install -d -o offhook -g offhook /models /kernels /voices /recordings /run/offhook


# What each image has, in a stage of its own: a change elsewhere in pyproject.toml then moves no layer.
# Servers can share the replies that they keep, through Redis, and the calls, through PostgreSQL.
FROM base AS locks
COPY pyproject.toml /tmp/locks/
COPY deploy/requirements.lock deploy/locked.py deploy/cpu_torch.py /tmp/locks/deploy/
RUN python3 /tmp/locks/deploy/locked.py base knowledge mcp postgres redis s3 wyoming > /tmp/cpu.lock \
    && python3 /tmp/locks/deploy/locked.py --without-torch base knowledge mcp postgres redis s3 wyoming qwen \
        > /tmp/cpu-engines.lock \
    && python3 /tmp/locks/deploy/locked.py base knowledge mcp postgres redis s3 wyoming qwen > /tmp/cuda.lock \
    && sed -n 's/ \\$//p' /tmp/locks/deploy/requirements.lock > /tmp/versions.txt


# Packages exactly as locked, wheels only: nothing is compiled. A package index of your own:
# --secret id=pip,src=pip.conf is there while pip runs and in no layer.
FROM base AS packages
RUN python3 -m venv --without-pip /opt/offhook
COPY --from=locks /tmp/cpu.lock /tmp/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip --python /opt/offhook/bin/python install --disable-pip-version-check \
        --no-deps --require-hashes --only-binary :all: -r /tmp/cpu.lock


# The engines for a CPU. torch and what only it needs are in the versions of the lock, without hashes:
# its build for CPUs is on an index of its own, TORCH_INDEX; without it the build stops and says so.
FROM packages AS packages-cpu-engines
ARG TORCH_INDEX=""
COPY --from=locks /tmp/locks /tmp/locks
COPY --from=locks /tmp/cpu-engines.lock /tmp/versions.txt /tmp/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=cache,target=/root/.cache/pip \
    PIP_PYTHON=/opt/offhook/bin/python PIP_ONLY_BINARY=:all: PIP_CONSTRAINT=/tmp/versions.txt \
        TORCH_INDEX="$TORCH_INDEX" python3 /tmp/locks/deploy/cpu_torch.py \
    && python3 -m pip --python /opt/offhook/bin/python install --disable-pip-version-check \
        --no-deps --require-hashes --only-binary :all: -r /tmp/cpu-engines.lock


# torch and what else the Qwen3 engines need. No flash-attn: attention is kernels of our own, which
# know the pages of the cache, and nothing here would import it.
FROM packages AS packages-cuda
COPY --from=locks /tmp/cuda.lock /tmp/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip --python /opt/offhook/bin/python install --disable-pip-version-check \
        --no-deps --require-hashes --only-binary :all: -r /tmp/cuda.lock


# Triton compiles one C module, its way to the driver, when it first runs. Here it is compiled
# beforehand, against a libcuda of empty functions, so that the image needs no compiler.
FROM packages-cuda AS triton
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
ENV TRITON_LIBCUDA_PATH=/opt/triton/libcuda TRITON_CACHE_DIR=/opt/triton/module
RUN mkdir -p $TRITON_LIBCUDA_PATH \
    && cd /opt/offhook/lib/python3*/site-packages/triton/backends/nvidia \
    && grep -ohE '\bcu[A-Z]\w+' driver.c | sort -u | sed 's/.*/void &(void) {}/' \
    | gcc -shared -Wl,-soname,libcuda.so.1 -o $TRITON_LIBCUDA_PATH/libcuda.so.1 -x c - \
    && LD_LIBRARY_PATH=$TRITON_LIBCUDA_PATH /opt/offhook/bin/python -c \
        'from triton.backends.nvidia.driver import CudaUtils; CudaUtils()'


# The path of packets, compiled. The flags are those of pyproject.toml.
FROM base AS native
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY offhook/media/native /tmp/native
RUN gcc -O3 -ffp-contract=off -Werror=implicit-function-declaration -DPy_LIMITED_API=0x030B0000 -shared -fPIC \
        -I$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))') \
        -o /tmp/native/_native.abi3.so /tmp/native/*.c -lm


# The program itself, compiled to bytecode: its user may not write where it lies.
FROM base AS program
COPY offhook /opt/offhook/src/offhook
COPY deploy/container/healthy.py /opt/offhook/src/
COPY --from=native /tmp/native/_native.abi3.so /opt/offhook/src/offhook/media/native/
RUN python3 -m compileall -q /opt/offhook/src
COPY deploy/container/offhook /opt/offhook/src/bin/
COPY LICENSE NOTICE docs/licences.md /opt/offhook/src/


# --- what runs ---
FROM base AS runtime
# Freed memory goes back to the system after a second, by a thread of the allocator's own. Libraries
# make no threads: who computes (the voice detector, the engines) has its own.
ENV PATH=/opt/offhook/src/bin:/opt/offhook/bin:$PATH \
    PYTHONPATH=/opt/offhook/src \
    LD_PRELOAD=libjemalloc.so.2 \
    MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0 \
    OMP_NUM_THREADS=1 \
    MKL_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1 \
    HF_HOME=/models \
    MODELSCOPE_CACHE=/models/modelscope \
    OFFHOOK_SERVER_HOST=0.0.0.0 \
    OFFHOOK_TTS_VOICES=/voices \
    OFFHOOK_RECORDS_URL=sqlite:////recordings/calls.db \
    OFFHOOK_RECORDS_SPOOL=/recordings/spool \
    OFFHOOK_RECORDING_DIRECTORY=/recordings
WORKDIR /var/lib/offhook
USER 10001:10001
EXPOSE 7860 7862 7870 7871
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-m", "healthy", "http://localhost:7860/healthz"]
ENTRYPOINT ["offhook"]
CMD ["serve"]


# Beside the CPU image's: which GPUs and which of the driver's libraries NVIDIA's container runtime
# lends, and where kernels are kept that were compiled once.
FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TRITON_LIBCUDA_PATH=/opt/triton/libcuda \
    TRITON_CACHE_DIR=/kernels
COPY --from=triton /opt/triton/module /opt/triton/module
COPY --from=packages-cuda /opt/offhook /opt/offhook
COPY --from=program /opt/offhook/src /opt/offhook/src


# Talks at once with the embedded engines, and moves new calls over to those of `auto` when their
# models have been downloaded into /models.
FROM runtime AS cpu-engines
COPY --from=packages-cpu-engines /opt/offhook /opt/offhook
COPY --from=program /opt/offhook/src /opt/offhook/src
CMD ["serve", "--engines", "auto"]


FROM runtime AS cpu
COPY --from=packages /opt/offhook /opt/offhook
COPY --from=program /opt/offhook/src /opt/offhook/src
