# The plugin's image, for who has an engine: docker build --build-arg VERSION=v1.2.3 .
# `make image` builds the same binary without one.
# GO_IMAGE is any image with Go and make. The same version of Go makes the same bytes.
ARG GO_IMAGE=docker.io/library/golang:1.26.8@sha256:6c2a5538f964f1c82f97ad14988bf05de100d922d159d0e398b54c7b0ca0c6c9
FROM --platform=$BUILDPLATFORM $GO_IMAGE AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY Makefile ./
COPY cmd cmd
COPY pkg pkg
ARG VERSION=v0.0.0-unknown
ARG REVISION=unknown
ARG TARGETOS
ARG TARGETARCH
RUN GOOS="$TARGETOS" GOARCH="$TARGETARCH" make build-plugin VERSION="$VERSION" REVISION="$REVISION"

FROM scratch
ARG VERSION=v0.0.0-unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="refvol-plugin" \
      org.opencontainers.image.description="CSI node plugin that shows ConfigMaps and Secrets as live files" \
      org.opencontainers.image.source="https://github.com/refvol/refvol" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /src/bin/refvol-plugin /refvol-plugin
USER 0
ENTRYPOINT ["/refvol-plugin"]
