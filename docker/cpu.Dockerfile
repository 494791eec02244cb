# Plaudit without a GPU, with everything that `make test` needs:
#   docker build -f docker/cpu.Dockerfile -t plaudit:cpu .
#   docker run --rm --shm-size=2g plaudit:cpu make test
#   docker run --rm -it -v "$PWD/runs:/plaudit/runs" plaudit:cpu plaudit demo
FROM debian:12-slim
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        make python3 python3-venv python3-dev gcc libc6-dev linux-libc-dev ca-certificates \
        libegl1 libgl1 libxkbcommon0 libdbus-1-3 libfontconfig1 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /plaudit
COPY . .
# The build of PyTorch without CUDA, which is a tenth of the other.
ARG TORCH=torch==2.13.0+cpu
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN make environments
ENV PATH=/plaudit/.venv/bin:$PATH
CMD ["plaudit", "doctor"]
