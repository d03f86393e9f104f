# One process, no compiler, no shell needed: the locked wheels and the service's own files.
# The digest covers the images of all platforms; the tag beside it is for readers. To update it, get the current digest
# of the tag: docker buildx imagetools inspect python:3.11.15-slim-bookworm
FROM python:3.11.15-slim-bookworm@sha256:d29f48a31a8b408ed19272ca1e7b10ebae13b240a27e862d3d4217c528e2e0c3

# matplotlib keeps its list of fonts in MPLCONFIGDIR; the rest of the file system may be read-only.
# SERVICE_SECRET_FILE is the path of a file in a volume, not a secret.
# hadolint ignore=DL3064
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp/matplotlib \
    SERVICE_DATA_DIR=/data \
    SERVICE_SECRET_FILE=/secret/service.secret

WORKDIR /app

# requirements-otel.lock adds the packages for SERVICE_TRACING.
ARG REQUIREMENTS=requirements.lock
COPY ${REQUIREMENTS} requirements.lock
RUN pip install --no-cache-dir --no-deps --only-binary :all: --require-hashes --requirement requirements.lock

# A fixed number, so that volumes keep their owner from one image to the next. The directories exist
# before they are declared, so that a new volume belongs to the user who writes to it.
RUN groupadd --system --gid 10001 ledger \
    && useradd --system --uid 10001 --gid ledger --home-dir /app --no-create-home --shell /usr/sbin/nologin ledger \
    && install --directory --owner ledger --group ledger --mode 0700 /data /secret

COPY pyproject.toml ./
COPY migrations ./migrations
COPY service ./service
RUN python -m compileall -q service migrations

USER 10001:10001

# In a directory of its own, so that a copy of the data does not contain the secret that protects it.
VOLUME ["/data", "/secret"]

EXPOSE 8000

# Without the environment's proxy, which an agency's network may set for all containers.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/readyz', timeout=4)"]

CMD ["python", "-m", "service", "serve", "--host", "0.0.0.0", "--port", "8000"]
