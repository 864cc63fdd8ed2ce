# cloudfn: every target sets up what it needs. `make` alone prints this help.

GOLANGCI_LINT := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
PACKAGES := ./functions/... ./shared/... ./bench/...
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run test lint bench build sandbox down clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Set up a cloud and a database, and run the daemon on 127.0.0.1:8080
	@scripts/run

test: sandbox ## Set up what the tests need and run them all
	@scripts/postgres up > /dev/null
	@echo "== tests, in parallel"
	go test -race -shuffle=on -timeout 30m $(PACKAGES)
	@echo "== tests that stop parts of the sandbox, one by one"
	go test -race -tags faults -run '^TestFault' -timeout 15m -v ./functions

lint: ## Check the code, the import walls, the scripts and go.mod
	@command -v shellcheck > /dev/null || { echo "installing shellcheck"; { apt-get update -q && apt-get install -y -q --no-install-recommends shellcheck; } > /tmp/cloudfn-apt.log 2>&1 || { echo "apt-get failed, see /tmp/cloudfn-apt.log"; exit 1; }; }
	shellcheck -x -P SCRIPTDIR scripts/run scripts/postgres scripts/sandbox scripts/sandbox.d/*.sh .ci/run
	go mod tidy -diff
	go mod verify
	go vet -tags faults,bench $(PACKAGES)
	$(GOLANGCI_LINT) run $(PACKAGES)

bench: sandbox ## Measure, side by side with what we compare to, and print the tables
	@scripts/postgres up > /dev/null
	go test -tags bench -count=1 -timeout 20m -v ./bench

build: ## Build the binary into .local/bin/cloudfn
	@mkdir -p .local/bin
	go build -trimpath -ldflags '-s -w' -o .local/bin/cloudfn ./functions

sandbox: ## Bring up the sandbox cloud (a real OpenStack on loopback)
	@scripts/sandbox up

down: ## Stop the sandbox cloud and the local Postgres; their data is kept
	@scripts/sandbox down
	@scripts/postgres down

clean: ## Stop both and remove their data
	@scripts/sandbox purge
	@scripts/postgres purge
	rm -rf .local
