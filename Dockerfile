# docker build -t roundpipe .
# docker build -t roundpipe --build-arg BASE=nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04 .     with GPU code
# docker run --rm --gpus all -v "$PWD:/work" roundpipe train run.yaml
ARG BASE=debian:12-slim
FROM $BASE AS build
ENV DEBIAN_FRONTEND=noninteractive
WORKDIR /build/roundpipe
COPY debian/control debian/changelog debian/
RUN apt-get update && apt-get build-dep -y --no-install-recommends ./
COPY . .
RUN if command -v nvcc; then export DEB_BUILD_PROFILES=pkg.roundpipe.cuda; fi; dpkg-buildpackage -b -us -uc
RUN rm -f ../*-dbgsym_*.deb ../lib*.deb

FROM $BASE
ENV DEBIAN_FRONTEND=noninteractive
COPY --from=build /build/*.deb /packages/
RUN apt-get update \
    && apt-get install -y --no-install-recommends /packages/*.deb gnuplot-nox fonts-dejavu-core \
    && rm -rf /packages /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["roundpipe"]
