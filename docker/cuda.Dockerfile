# Plaudit with CUDA, with everything that `make test` needs. The wheels of PyTorch bring CUDA, so the image needs no CUDA
# of its own, and the host needs a driver and the NVIDIA container toolkit:
#   docker build -f docker/cuda.Dockerfile -t plaudit:cuda .
#   docker run --rm --gpus all --shm-size=2g plaudit:cuda make test
#   docker run --rm --gpus all -it -v "$PWD/runs:/plaudit/runs" plaudit:cuda plaudit train env=pick_place learner=sac demos.scripted=20
FROM ubuntu:24.04
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        make python3 python3-venv python3-dev gcc libc6-dev linux-libc-dev ca-certificates \
        libegl1 libgl1 libxkbcommon0 libdbus-1-3 libfontconfig1 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /plaudit
COPY . .
ARG TORCH=torch==2.13.0
RUN make environments
ENV PATH=/plaudit/.venv/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics,video
CMD ["plaudit", "doctor"]
