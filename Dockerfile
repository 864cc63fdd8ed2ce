# The one image of all functions, for builders other than ko (docs/build.md): a static binary on a base without a shell.
# With a folder vendor (make vendor) the build needs no network. Another GO_IMAGE needs go.mod's toolchain or a newer
# one, and a shell; BASE_IMAGE may be scratch, but then OpenStack's and Postgres's certificates must be mounted.
ARG GO_IMAGE=docker.io/library/golang:1.26.10-bookworm
ARG BASE_IMAGE=gcr.io/distroless/static-debian12:nonroot@sha256:d093aa3e30dbadd3efe1310db061a14da60299baff8450a17fe0ccc514a16639

FROM ${GO_IMAGE} AS build
ARG VERSION=
# A proxy of your own for modules. Without one Go's default applies.
ARG GOPROXY=
ENV CGO_ENABLED=0 GOTOOLCHAIN=local
WORKDIR /src
COPY . .
RUN go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X github.com/cloudfn/cloudfn/shared/buildinfo.version=${VERSION}" -o /out/cloudfnd ./functions

FROM ${BASE_IMAGE}
COPY --from=build /out/cloudfnd /cloudfnd
# Nobody: a number, so that Kubernetes can tell that it is not root.
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/cloudfnd"]
