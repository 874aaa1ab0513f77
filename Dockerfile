# The two commands of the README, and all others, without anything installed but docker:
#   docker build --tag splade_nb .                           PyTorch for CUDA; --build-arg TORCH=cpu for a smaller image
#   docker run --volume "$PWD/outputs:/splade_nb/outputs" splade_nb make train      --gpus all where there is one
#   docker run splade_nb make test
#   docker run --publish 127.0.0.1:8000:8000 splade_nb make serve      the page at http://localhost:8000
FROM python:3.11-slim

# git names the revision of a result, gcc compiles what launches the kernel on a GPU
RUN apt-get update --quiet \
 && apt-get install --quiet --yes --no-install-recommends gcc git libc6-dev make \
 && rm -rf /var/lib/apt/lists/*

# Beside the checkout, so that a folder of the host can be mounted over it
ENV VENV=/opt/splade_nb PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /splade_nb
COPY Makefile pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY splade_nb/__init__.py splade_nb/

# cuda: the build that pip finds on Linux; others, such as cpu and cu130, as `uv pip install --torch-backend` names them.
# With the file .ready make keeps this environment.
ARG TORCH=cuda
RUN if [ "$TORCH" != cuda ]; then python -m pip install --quiet uv && python -m venv "$VENV" \
 && uv pip install --quiet --python "$VENV" --torch-backend "$TORCH" --constraint constraints.txt torch \
 && pwd -P > "$VENV/.ready"; fi
RUN make install

COPY . .
# Nothing outside reaches the localhost of a container, so the page is served on its address.
ENTRYPOINT ["/bin/sh", "-c", "SPLADE_NB_HOST=${SPLADE_NB_HOST:-$(hostname -i | cut -d' ' -f1)} exec \"$@\"", "sh"]
CMD ["make", "train"]
