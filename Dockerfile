# sigmax on the CPU:
#   docker build -t sigmax .
#   docker run --rm -v "$PWD/runs:/sigmax/runs" sigmax demo --out runs/demo
FROM python:3.11-slim

WORKDIR /opt/sigmax
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --constraint constraints.txt '.[onnx,openvino]'

# Certificates and networks go where the user mounts a folder; data sets are looked for in /data.
ENV SIGMAX_DATA=/data
WORKDIR /sigmax
ENTRYPOINT ["sigmax"]
CMD ["--help"]
