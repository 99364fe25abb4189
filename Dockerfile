# Two images, both with the server as their command and its flags as arguments:
#   docker build --target cpu -t paged_jax:cpu .
#   docker build --target cuda -t paged_jax:cuda .
FROM python:3.12-slim AS base
RUN useradd --uid 2000 --gid 0 --create-home server && install -d -o 2000 -g 0 -m 770 /cache
# Models, compiled programs and compiled kernels; a volume, or every container begins anew.
ENV XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface PYTHONUNBUFFERED=1
COPY pyproject.toml README.md /src/
COPY paged_jax /src/paged_jax
COPY pallas_kernels /src/pallas_kernels
COPY server /src/server
WORKDIR /src
EXPOSE 8000
VOLUME /cache
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "paged_jax.serve", "--host", "0.0.0.0"]

FROM base AS cuda
RUN python -m pip install --no-cache-dir '.[cuda]'
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /home/server
USER 2000:0

# Kernels are compiled on first use, for the processor at hand.
FROM base AS cpu
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m pip install --no-cache-dir .
WORKDIR /home/server
USER 2000:0
