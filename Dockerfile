# Serving image: the wheel with its CPU runtime, no torch and no compiler.
#   docker build -t ortolan .
#   docker run --rm -p 127.0.0.1:8000:8000 -v /path/to/bundle:/bundle:ro ortolan
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps -w /wheels .

FROM python:3.12-slim
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /wheels/ortolan-*.whl)[cpu]" \
    && useradd --system --no-create-home ortolan
USER ortolan
EXPOSE 8000
ENTRYPOINT ["ortolan"]
# The container's own address is not the loopback; publish the port on 127.0.0.1 only, as above.
CMD ["serve", "/bundle", "--host", "0.0.0.0", "--port", "8000", "--insecure"]
