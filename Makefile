# cloudfn: every target sets up what it needs. `make` alone prints this help.

GOLANGCI_LINT := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
PACKAGES := ./cmd/... ./functions/... ./shared/... ./docs/... ./knative/... ./scripts/... ./test/...
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# All is built with the Go of go.mod or a newer one, as releases are, whatever the environment says.
export GOTOOLCHAIN := $(shell scripts/version go)
# Under the race detector: where goroutines share state. The rest are programs that these tests start, and texts.
RACE := ./functions/... ./shared/...
PLAIN := ./cmd/... ./docs/... ./knative/... ./scripts/... ./test/...
# What kills, waits, stops services or counts at scale is named TestLong... or TestFault..., and runs in make test-long.
SHORT := -skip '^Test(Long|Fault)'
# CLOUD=epoxy: run, test, test-long, sandbox and so on use the sandbox of that release (scripts/sandbox).
ifdef CLOUD
export SANDBOX_RELEASE := $(CLOUD)
export CLOUDFN_SANDBOX ?= $(shell scripts/sandbox folder)
endif
.PHONY: help run check test test-long test-all lint vulncheck new generate bench build vendor image sandbox cluster deploy undeploy e2e down clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Set up a cloud and a database, and run the daemon on 127.0.0.1:8080
	@scripts/run

check: ## Build, vet, lint what is fast, and run the tests that need no cloud, no root and no browser
	@scripts/postgres up > /dev/null
	go build ./...
	go vet $(PACKAGES)
	$(GOLANGCI_LINT) run --allow-parallel-runners --fast-only $(PACKAGES)
	TEST_CLOUD=none scripts/gotest $(SHORT) -parallel 8 -timeout 10m -- $(PACKAGES)

# Both run to their end, whatever fails.
tests = rc=0; \
	echo "== tests under the race detector"; \
	scripts/gotest -race -shuffle=on -count=1 $(1) -- $(RACE) || rc=$$?; \
	echo "== tests without it"; \
	scripts/gotest -shuffle=on -count=1 $(1) -- $(PLAIN) || rc=$$?

test: sandbox ## Set up what the tests need and run all that are not long
	@scripts/pgbouncer up > /dev/null
	@scripts/browser up
	@$(call tests,-parallel 4 -timeout 20m $(SHORT)); exit $$rc

test-long: sandbox ## The tests that kill, wait, stop services, walk far or count at scale
	@scripts/pgbouncer up > /dev/null
	@scripts/browser up
	@$(call tests,-parallel 3 -timeout 120m -run '^TestLong'); \
	echo "== tests that stop parts of the sandbox, one by one"; \
	scripts/gotest -count=1 -run '^TestFault' -timeout 20m -- ./test/process || rc=$$?; \
	echo "== a choice of the tests on OpenStack 2025.1"; \
	scripts/test-epoxy || rc=$$?; \
	exit $$rc

test-all: ## All tests: runs each step, prints a table, and writes it into docs/testing.md; STEPS="test-long e2e" runs some
	@scripts/test-all $(STEPS)

lint: ## Check the code, its words, the import walls, the scripts, openapi.yaml and go.mod
	@command -v shellcheck > /dev/null || scripts/apt shellcheck
	shellcheck -x -P SCRIPTDIR scripts/apt scripts/run scripts/postgres scripts/pgbouncer scripts/openapi scripts/npm scripts/gotest scripts/test-all scripts/test-epoxy scripts/browser scripts/image scripts/version scripts/deploy scripts/e2e scripts/cloud-init scripts/guest scripts/style scripts/sandbox scripts/sandbox.d/*.sh scripts/cluster scripts/cluster.d/*.sh .ci/run
	scripts/style
	scripts/openapi
	go test -run UpToDate ./scripts/types ./cmd/cloudfn # what make generate writes
	go run ./scripts/declarations -check
	go mod tidy -diff
	go mod verify
	go vet -tags bench,e2e $(PACKAGES)
	$(GOLANGCI_LINT) run --allow-parallel-runners $(PACKAGES)
	go run ./scripts/vulncheck

vulncheck: ## Look for vulnerabilities with the newest database; lint has a pinned one
	@go run ./scripts/vulncheck -latest

new: ## Begin a function: NAME=leases KIND=http, or NAME=run-leases KIND=event
	@go run ./scripts/new '$(NAME)' '$(KIND)'

generate: ## Make what follows from openapi.yaml and the functions' declarations: types, manifests, grants, tables, commands
	go run ./scripts/declarations
	go run ./scripts/types
	go test ./cmd/cloudfn -run '^TestReferenceCommandsUpToDate$$' -update

bench: sandbox ## Measure, side by side with what we compare to, and print the tables; ROWS="4 13c" measures some lines
	@scripts/postgres up > /dev/null
	ROWS="$(ROWS)" go test -tags bench -count=1 -timeout 20m -v ./test/bench

build: VERSION := $(shell scripts/version)
build: ## Build the daemon into .local/bin/cloudfnd and the CLI into .local/bin/cloudfn
	@mkdir -p .local/bin
	go build -trimpath -ldflags '-s -w -X github.com/cloudfn/cloudfn/shared/buildinfo.version=$(VERSION)' -o .local/bin/cloudfnd ./functions
	go build -trimpath -ldflags '-s -w -X github.com/cloudfn/cloudfn/shared/buildinfo.version=$(VERSION)' -o .local/bin/cloudfn ./cmd/cloudfn
	ln -sf cloudfn .local/bin/kn-cloud

vendor: ## Copy all dependencies into vendor/, so that the checkout builds without a network
	go mod vendor

image: ## Build the container image (pushed to KO_DOCKER_REPO, else an OCI tarball)
	@scripts/image

cluster: ## Bring up a test cluster with Knative, and the sandbox and Postgres where its pods reach them
	@scripts/e2e up

deploy: ## Deploy to the cluster of KUBECONFIG, else to the test cluster (OVERLAY=local WITH=kubectl)
	@scripts/deploy up

undeploy: ## Remove what deploy made
	@scripts/deploy down

e2e: ## Deploy to a real Knative and test there
	@scripts/e2e test

sandbox: ## Bring up the sandbox cloud (a real OpenStack on loopback)
	@scripts/sandbox up

down: ## Stop the cluster, the sandbox clouds and the local Postgres; the data of these two is kept
	@scripts/cluster down || [ $$? = 3 ]   # 3: this machine cannot run one
	@scripts/sandbox down
	@CLOUDFN_SANDBOX= SANDBOX_RELEASE=epoxy scripts/sandbox down
	@scripts/pgbouncer down
	@scripts/postgres down

clean: ## Stop all and remove their data
	@scripts/cluster purge
	@scripts/sandbox purge
	@CLOUDFN_SANDBOX= SANDBOX_RELEASE=epoxy scripts/sandbox purge
	@scripts/pgbouncer down
	@scripts/postgres purge
	rm -rf .local
