# The team's server, `advisor ui --serve`. It listens on the container's loopback address only:
# what signs people in shares its network (examples/proxy/compose.yaml).
#   docker build -t advisor .
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY . .
RUN pip wheel --no-deps --wheel-dir wheels .

FROM python:3.12-slim
WORKDIR /opt/advisor
COPY --from=build /src/wheels wheels
# First, so that nothing pulls in another build; s3fs is for ADVISOR_RUNS=s3://...
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir wheels/*.whl s3fs
RUN useradd --create-home advisor && mkdir /data && chown advisor /data
USER advisor
# Runs, fitted models, updated prices: a volume, or ADVISOR_RUNS and ADVISOR_MODELS of a store.
ENV XDG_DATA_HOME=/data
VOLUME /data
HEALTHCHECK --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8123/healthz', timeout=5)"]
ENTRYPOINT ["advisor", "ui", "--serve", "--port", "8123"]
# Whose page opens first; every link holds a question of its own.
CMD ["--layers", "24", "--hidden", "2048", "--heads", "16", "--tokens", "2B"]
