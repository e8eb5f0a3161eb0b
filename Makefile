# Needs Go, a C compiler and make; `make demo`, `make build` and `make image` need no
# C compiler. What `make e2e` needs beside them, it installs (as root on Debian) or names.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

GO ?= go
# A go.work of the user's own must not change which versions are built.
export GOWORK := off
# The race detector would have each process of the tests wait for a second at its end.
export GORACE := atexit_sleep_ms=0

# The version is semantic, as the Kubernetes libraries that read it demand, and its
# characters are those of an image tag.
VERSION := $(or $(VERSION),$(shell git describe --tags --match 'v[0-9]*.[0-9]*.[0-9]*' --abbrev=12 --dirty 2>/dev/null \
	|| git describe --always --exclude '*' --abbrev=12 --dirty 2>/dev/null | sed 's/^/v0.0.0-g/'),v0.0.0-unknown)
REVISION := $(or $(REVISION),$(shell git rev-parse --verify --quiet HEAD 2>/dev/null),unknown)
# Where what the tests need is built, once.
CACHE = $(or $(REFVOL_CACHE),~/.cache/refvol)
PROGRAM ?= refvol-plugin
IMAGE ?= ghcr.io/refvol/$(PROGRAM):$(VERSION)

# Go's flags for what leaves this checkout: the same input gives the same bytes, on
# any machine.
STATIC := CGO_ENABLED=0 $(GO)
BUILD_FLAGS := -trimpath -buildvcs=false
# Tests have the same, so that another clone finds what this one has compiled and tested.
RACE := -race $(BUILD_FLAGS)
# Without this tag gRPC links html/template, and the linker keeps every exported method: 7 MB.
PLUGIN_TAGS := -tags=grpcnotrace
LDFLAGS := -s -w \
	-X k8s.io/component-base/version.gitVersion=$(VERSION) \
	-X k8s.io/component-base/version.gitCommit=$(REVISION)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

OUT ?= bin/$(PROGRAM)
.PHONY: build
build: build-plugin ## Build bin/refvol-plugin and bin/kubectl-refvol, statically linked
	@$(MAKE) --no-print-directory build-program PROGRAM=kubectl-refvol

.PHONY: build-plugin
build-plugin: build-program

# PROGRAM=name builds another one of cmd/, OUT=file puts it elsewhere.
.PHONY: build-program
build-program:
	$(STATIC) -C cmd/$(PROGRAM) build $(BUILD_FLAGS) $(PLUGIN_TAGS) -ldflags '$(LDFLAGS)' -o '$(abspath $(OUT))' .

.PHONY: image
image: build-program pack ## Pack bin/refvol-plugin.tar, a container image called IMAGE=..., without an engine; PROGRAM=refvol-notify packs that one

# One binary for each architecture. The tool runs here, whatever GOARCH these are for.
BINARIES ?= bin/$(PROGRAM)
ARCHIVE ?= bin/$(PROGRAM).tar
DESCRIPTION_refvol-plugin := CSI node plugin that shows ConfigMaps and Secrets as live files
DESCRIPTION_refvol-notify := Has an application pick up a change of its files: by a signal, a URL or a restart in place
DESCRIPTION_kubectl-refvol := Tells which refvol volumes show what on all nodes, and waits for a version
# The user that runs it. The plugin mounts and needs root; kubectl-refvol reads its caller's kubeconfig.
USER_refvol-notify := 65532
.PHONY: pack
pack:
	GOOS= GOARCH= $(STATIC) -C tools run $(BUILD_FLAGS) ./image \
		$(foreach binary,$(BINARIES),-binary '$(abspath $(binary))') -entrypoint '/$(PROGRAM)' -user '$(or $(USER_$(PROGRAM)),0)' \
		-reference '$(IMAGE)' -output '$(abspath $(ARCHIVE))' \
		-label org.opencontainers.image.title='$(PROGRAM)' \
		-label 'org.opencontainers.image.description=$(DESCRIPTION_$(PROGRAM))' \
		-label org.opencontainers.image.source=https://github.com/refvol/refvol \
		-label org.opencontainers.image.licenses=Apache-2.0 \
		-label org.opencontainers.image.version='$(VERSION)' \
		-label org.opencontainers.image.revision='$(REVISION)'

.PHONY: release
release: ## Make bin/release: binaries, images, chart, bills of materials, krew's manifest, checksums, for VERSION
	$(STATIC) -C tools/release run $(BUILD_FLAGS) . -root '$(CURDIR)' -output '$(CURDIR)/bin/release' \
		-version '$(VERSION)' -revision '$(REVISION)'

.PHONY: lint
lint: ## Check style, layering, modules and scripts, in every module
	@tools/lint.sh

.PHONY: fmt
fmt: ## Format all Go files as make lint wants them
	@tools/lint.sh fmt

# Most of what the suites compile is the plugin and the libraries that it links: compiled first, none of
# that is compiled twice. Then the suites run side by side, for most of them mostly wait. What fails keeps
# nothing else from running. More at once than the processors bear would only slow what measures times.
# Tests have more memory than time: nothing collects garbage as often as it would. The plugin does, as
# the harness starts it.
.PHONY: test
test: export GOGC := 300
test: ## Run the unit tier, the integration tier and csi-sanity
	@echo "make test installs strace and nginx-light by apt (as root on Debian, if they are missing), and builds etcd, kube-apiserver, kubectl, helm and Prometheus from Go modules into $(CACHE)"
	$(GO) build $(RACE) ./...
	@$(MAKE) --no-print-directory --keep-going -j $$((2 * $$(nproc))) test-unit test-integration test-sanity

# Tests that remove, link or mount run in the sandbox only (CONTRIBUTING.md). That this variable has a value has
# them fail elsewhere, where they would be skipped.
SANDBOX := -exec '$(CURDIR)/tools/sandbox.sh'
export REFVOL_SANDBOX ?= required

# make lint vets all modules.
TEST := test $(RACE) -vet=off -timeout 40m
# Modules that start no goroutine have nothing to race: their tests share what make lint and make build
# have compiled.
PLAIN_TEST = $(filter-out -race,$(TEST))

# Prints the packages whose tests have fake time. Their tests get one processor: Go's race detector keeps
# one state for all timers of a bubble, and breaks ("ThreadSanitizer: CHECK failed", go.dev/issue/78156) if two
# processors run such timers at the same moment.
BUBBLED := grep -rl --include='*_test.go' '"testing/synctest"' cmd/refvol-plugin cmd/refvol-notify pkg | xargs -n 1 dirname | sort -u | sed 's|^|./|'

# Programs of the distribution that tests run. A test whose program is missing fails, unless REFVOL_WITHOUT names the program.
PROGRAMS := strace=strace nginx=nginx-light
.PHONY: programs
programs:
	@missing=; for program in $(PROGRAMS); do \
		case ",$$REFVOL_WITHOUT," in *,$${program%=*},*) continue ;; esac; \
		PATH=$$PATH:/usr/sbin command -v $${program%=*} >/dev/null || missing="$$missing $${program#*=}"; \
	done; \
	if [ -n "$$missing" ] && ! { [ "$$(id -u)" = 0 ] && apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install $$missing >/dev/null; }; then \
		echo "not installed, and not installable here:$$missing" >&2; \
	fi

.PHONY: test-unit
test-unit: programs ## Run the unit tier: no root, no network, no built binaries
	$(GO) $(TEST) $(SANDBOX) -cpu 1 $$($(BUBBLED))
	$(GO) $(TEST) $(SANDBOX) $$($(GO) list ./... | grep -vxF -e "$$($(GO) list ./internal/simulation)" -e "$$($(GO) list $$($(BUBBLED)))")
	$(GO) $(PLAIN_TEST) $(SANDBOX) ./internal/simulation
	$(GO) -C cmd/kubectl-refvol $(TEST) -cpu 1 ./...
	$(STATIC) -C tools $(PLAIN_TEST) $(ONCE) ./...
	$(STATIC) -C tools/release $(PLAIN_TEST) -short ./...

# The suites of the e2e module run programs that they don't import, and those of deploy/ read
# files outside of their module, so a result that go kept says nothing of them: -count=1.
ONCE = $(if $(findstring -count,$(TEST)),,-count=1)
.PHONY: test-integration
test-integration: test-suites test-tools test-bench test-deploy ## Run the integration tier: real etcd, API server, mounts and sockets; the manifests

# All suites of the module but the one that needs a cluster, those that take longest first.
LONGEST := manifests faults crash fleet
.PHONY: test-suites
test-suites: programs
	cd e2e && packages=$$($(GO) list ./suites/...) && \
		$(GO) $(TEST) $(SANDBOX) $(ONCE) $(LONGEST:%=./suites/%) $$(echo "$$packages" | grep -v $(patsubst %,-e /suites/%,kind $(LONGEST)))

# What the suites are made of stands for itself.
.PHONY: test-tools
test-tools:
	cd e2e && $(GO) $(TEST) $(SANDBOX) ./tools/...

# The short form of the benchmarks, which judges no time.
.PHONY: test-bench
test-bench:
	$(GO) -C e2e/suites/bench $(TEST) $(SANDBOX) $(ONCE) ./...

# The node image's module is other projects' programs but for one, which is tested as it is built.
.PHONY: test-deploy
test-deploy:
	$(STATIC) -C deploy $(PLAIN_TEST) $(ONCE) ./...
	$(STATIC) -C e2e/node-image/kubernetes $(PLAIN_TEST) ./nodenet

# ginkgo, which csi-sanity is built on, runs once a process: no -count of the user's own.
.PHONY: test-sanity
test-sanity: ## Run csi-sanity, the conformance suite of CSI, against the plugin's binary
	$(GO) -C e2e/suites/sanity test $(SANDBOX) $(RACE) -vet=off -timeout 15m -count=1 ./...

# REFVOL_LONG=1 asks for the long form of the suites that have one. On kind that is all of
# the suite at once.
.PHONY: test-long
test-long: test-fuzz ## Fuzz, run both tiers over and over in random order, and the suites' long forms, on kind too
	$(STATIC) -C tools/release test $(BUILD_FLAGS) -count=1 -timeout 3h -v .
	$(MAKE) test-unit TEST='test $(RACE) -vet=off -timeout 60m -shuffle=on -count=20'
	$(MAKE) test-integration TEST='test $(RACE) -vet=off -timeout 3h -shuffle=on -count=5'
	REFVOL_LONG=1 $(GO) -C e2e test $(SANDBOX) $(RACE) -timeout 6h -count=1 -v ./suites/crash ./suites/faults ./suites/consent ./suites/limits ./suites/receipts ./suites/seen ./suites/envfile ./suites/fleet ./suites/manifests ./suites/notify
	REFVOL_LONG=1 $(GO) -C e2e/suites/bench test $(SANDBOX) $(RACE) -timeout 1h -count=1 -v .
	REFVOL_LONG=1 $(STATIC) -C deploy test $(BUILD_FLAGS) -timeout 1h -count=1 -v .
	REFVOL_LONG=1 $(MAKE) e2e ARGS=-test.timeout=4h
	$(MAKE) e2e K8S=1.36
	$(MAKE) e2e K8S=1.35

# go fuzzes one target of one package at a time. Unless it is told otherwise, it spends
# most of its time on making each interesting input a little smaller.
FUZZTIME ?= 2m
.PHONY: test-fuzz
test-fuzz: ## Run each fuzz target for FUZZTIME
	@targets=$$($(GO) test -list '^Fuzz' ./...) && echo "$$targets" | \
		awk '/^Fuzz/ { names[n++] = $$1 } /^ok/ { for (i = 0; i < n; i++) print names[i], $$2; n = 0 }' | \
		while read -r name package; do \
			echo "$$package $$name"; \
			SANDBOX_KEEP=$$($(GO) list -f '{{.Dir}}' "$$package")/testdata $(GO) test $(SANDBOX) -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$package" || exit; \
		done

# What is too long for each change; CONTRIBUTING.md says what each part is for.
.PHONY: nightly
nightly: ## Run what is proven every night, in parts of an hour at most: all kernels and Kubernetes versions, long forms, mutants; PART=kernels-6.12 picks
	tools/nightly.sh $(PART)

# Results are merged into the file that is there: one scenario renews its own. Those that have a cluster run outside
# of the sandbox, where no container engine can.
BENCH_RUN = $(STATIC) -C e2e/suites/bench run $(BUILD_FLAGS)
BENCH_ARGS = . -scenario '$(SCENARIO)' -plugin '$(PLUGIN)'
.PHONY: bench
bench: ## Measure against the references; SCENARIO=update,publish picks, PLUGIN=file measures that binary
	SANDBOX_KEEP='$(CURDIR)/e2e/suites/bench' $(BENCH_RUN) $(SANDBOX) $(BENCH_ARGS); inside=$$?; $(BENCH_RUN) $(BENCH_ARGS) && exit $$inside

.PHONY: bench-table
bench-table: ## Put what make bench measured into docs/benchmarks.md and the lab book in e2e/suites/bench
	$(BENCH_RUN) . -table ../../../docs/benchmarks.md

.PHONY: commands-page
commands-page: ## Put the help of all programs into docs/commands.md
	SANDBOX_KEEP='$(CURDIR)/docs' $(GO) test $(SANDBOX) -count=1 -p 1 -run TestCommandsPage ./cmd/refvol-plugin ./cmd/refvol-notify -args -update
	$(GO) -C cmd/kubectl-refvol test -count=1 -run TestCommandsPage . -args -update

.PHONY: schemas
schemas: ## Put the JSON schema of each kind that -o json prints into schemas/
	$(GO) -C cmd/kubectl-refvol test -count=1 -run TestSchemas . -args -update

# Copies, because tools that fetch charts from git leave links out. rbac.yaml and tokens.yaml are templates of the chart.
CHART_FILES := deploy/charts/refvol/files
.PHONY: chart
chart: ## Copy what the chart takes of deploy/ into it, and put its values into its README
	rm -rf $(CHART_FILES)
	mkdir -p $(CHART_FILES)
	cd deploy && cp -R --parents base components dashboards examples/smoke.yaml charts/refvol/files
	cd $(CHART_FILES) && find . -name kustomization.yaml -delete && rm base/rbac.yaml components/pod-identity/tokens.yaml && find . -type d -empty -delete
	$(STATIC) -C deploy test -count=1 -run TestChartReadme . -args -update

.PHONY: demo
demo: ## Show live files, on an embedded control plane; KEEP=1 leaves it running
	@echo "make demo installs nothing by apt, and builds etcd and kube-apiserver from Go modules into $(CACHE)"
	@$(STATIC) -C e2e run $(SANDBOX) $(BUILD_FLAGS) ./tools/demo

# The site's modules are installed as package-lock.json has them, and without the scripts that packages bring.
SITE := site/node_modules/.package-lock.json
$(SITE): site/package-lock.json
	@command -v node npm >/dev/null && node -e 'process.exit(process.versions.node.split(".")[0] < 18 ? 1 : 0)' || { \
		echo "the site needs node 18 or newer and npm: apt-get install --no-install-recommends nodejs npm"; exit 1; }
	npm --prefix site ci --ignore-scripts --no-audit --no-fund
	@touch $@

.PHONY: docs
docs: $(SITE) ## Build the site of the documents into bin/site, and check its links; needs node 18 and npm
	npm --prefix site run --silent build

.PHONY: docs-versions
docs-versions: $(SITE) ## Build the site as make docs does, and those of the newest releases below it, with a menu of versions
	tools/docs-versions.sh

.PHONY: docs-serve
docs-serve: $(SITE) ## Show the site on http://localhost:5173, as the documents are now
	npm --prefix site run --silent serve

.PHONY: test-docs
test-docs: docs ## Open the site in Chromium: search, dark and light, a phone's width, no other host, versions; CHROMIUM=file names it
	@[ -x "$${CHROMIUM:-/usr/bin/chromium}" ] || { echo "make test-docs needs Chromium: apt-get install --no-install-recommends chromium"; exit 1; }
	npm --prefix site test

# The run is real: what the recording shows was printed.
.PHONY: recording
recording: ## Record make demo as docs/demo.svg, which README shows
	env -u MAKEFLAGS -u MAKELEVEL node site/record.mjs docs/demo.svg make demo

.PHONY: try
try: ## Install refvol on your own kind cluster, that of kubectl's current context, and show a change arrive
	@tools/try.sh

.PHONY: try-clean
try-clean: ## Remove what make try has installed
	@tools/try.sh clean

# KERNELS=6.1 picks; ARGS=-short is the short form, a few minutes on 6.1.
test-kernels: PROGRAMS := qemu-system-x86_64=qemu-system-x86
.PHONY: test-kernels
test-kernels: programs ## Boot Debian's kernels in QEMU and test mounts, writes and the plugin on each; KERNELS='6.1 6.12' picks
	$(STATIC) -C e2e run $(BUILD_FLAGS) ./suites/kernels $(ARGS) $(KERNELS)

.PHONY: e2e-deps
e2e-deps: ## Install what make e2e needs (as root on Debian), or name it
	e2e/node-image/deps.sh

.PHONY: e2e
e2e: ## Run the e2e tier: real pods on a kind cluster; K8S=1.35 picks its version, KEEP=1 keeps it, ARGS=-test.run=TestX picks tests
	e2e/suites/kind/run.sh $(ARGS)

.PHONY: clean
clean: ## Remove what was built in this checkout (caches are in ~/.cache/refvol, or REFVOL_CACHE)
	rm -rf bin
