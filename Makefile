# Set-up, tests and checks of the control plane. `make` lists the targets; deploy/README.md explains.

ifndef PYTHON
PYTHON := $(or $(shell for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$candidate && break; done),python3)
endif
# Quoted: it may be of a folder with spaces.
UP := "$(PYTHON)" -m deploy.up
RUN := $(UP) run --
TEST_RUN := $(UP) run --test --

# A thousand child processes of the tests would each compile our code again.
unexport PYTHONDONTWRITEBYTECODE

# Within so many seconds a run of the tests ends, with its summary: one that is cut off has failed.
TEST_SECONDS ?= 4800

# Three processes on two cores: much of what the tests do is waiting. They have to agree on the order,
# also where a set lists the tests. A single test has a limit of its own.
PYTEST = $(TEST_RUN) env PYTHONHASHSEED=0 timeout --foreground --signal=INT --kill-after=120 $(TEST_SECONDS) \
	python -m pytest -n 3 --dist=loadfile --no-loadscope-reorder

# Options for pytest: make test PYTEST_ARGS="-k planner -x -n 0"
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo up status down clean staff test test-full lint format bench bench-builds bench-record bench-ssh bench-packages bench-operate bench-density bench-volume bench-data-plane bench-egress bench-cluster bench-recovery mutants schema \
	lint-tools lint-code lint-format lint-types lint-imports lint-architecture lint-migrations lint-schema

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' \
		| while IFS='|' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done

demo: ## set everything up, then build and start a workspace from examples/
	@$(UP) demo

up: ## set everything up and start it; quick when it runs already
	@$(UP) up

status: ## show what is running
	@$(UP) status || [ $$? -eq 3 ] # 3: nothing of ours runs, which is no failure of make's

down: ## stop what was started; no data is lost
	@$(UP) down

clean: ## stop and remove all data of this checkout (asks; YES=1 does not ask)
	@$(UP) clean $(if $(YES),--yes)

staff: ## make an account for the admin pages
	@$(RUN) python manage.py createsuperuser

test: ## set up what the tests need and run those that every change needs
	@$(UP) prepare-test
	@$(PYTEST) -m "not full" $(PYTEST_ARGS)

test-full: ## run all tests: also those that kill services, install and take long
	@$(UP) prepare-test
	@$(PYTEST) $(PYTEST_ARGS)

lint: lint-code lint-format lint-types lint-imports lint-architecture lint-migrations lint-schema ## every static check

lint-tools:
	@$(UP) prepare-lint

lint-code: lint-tools
	@$(RUN) ruff check .

lint-format: lint-tools
	@$(RUN) ruff format --check .

lint-types: lint-tools
	@$(RUN) mypy .

lint-imports: lint-tools
	@$(RUN) lint-imports

# What import-linter does not see: the shape of the views, the relations that the ORM's strings follow.
lint-architecture: lint-tools
	@$(RUN) python -m pytest -q -n 0 -p no:cacheprovider tests/architecture

# No database runs for the checks; Django warns that it could not compare its history.
lint-migrations: lint-tools
	@$(RUN) python manage.py check
	@$(RUN) python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run

# The committed description of the API must be the one the code describes, and so must the pages made from the code.
# .spectral.yaml and redocly.yaml say what two linters of descriptions hold it to.
lint-schema: lint-tools
	@fresh=$$(mktemp) && trap 'rm -f "$$fresh"' EXIT \
		&& $(RUN) python manage.py spectacular --format openapi-json --validate --fail-on-warn --file "$$fresh" \
		&& diff -u openapi.json "$$fresh" \
		|| { echo 'openapi.json is not what the code describes: make schema'; exit 1; }
	@$(RUN) python manage.py blueprintreference --check
	@$(RUN) python manage.py apireference --check
	@$(RUN) spectral lint --fail-severity=hint openapi.json
	@$(RUN) env REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true redocly lint openapi.json

schema: lint-tools ## write openapi.json and the references in docs/users anew from the code
	@$(RUN) python manage.py spectacular --format openapi-json --validate --fail-on-warn --file openapi.json
	@$(RUN) python manage.py blueprintreference
	@$(RUN) python manage.py apireference

format: lint-tools ## format the code
	@$(RUN) ruff check --fix --quiet . && $(RUN) ruff format .

# Options: make mutants MUTANTS_ARGS="leases store --limit 100 --seed 2"
MUTANTS_ARGS ?=

mutants: ## change the modules that keep promises and say what no test notices (not a test)
	@$(UP) prepare-test >&2
	@$(TEST_RUN) env PYTHONHASHSEED=0 python -m tests.mutants $(MUTANTS_ARGS)

# Options: make bench-ssh BENCH_ARGS="--quick logins bulk"; make bench BENCH_ARGS="builds ssh --minutes 10"
BENCH_ARGS ?=

bench: ## run all benchmarks, write docs/developers/figures.md and say what became worse (not a test)
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench $(BENCH_ARGS)

bench-builds: ## measure the build path against its floors (not a test)
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench.builds

bench-record: ## measure the execution record against its floors (not a test)
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench.record

bench-ssh: ## measure the SSH gateway against sshd in one container (not a test)
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench.ssh $(BENCH_ARGS)

bench-packages: ## measure resolving packages against a bare SELECT through Django (not a test)
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench.packages

bench-operate: ## measure stop, start, memory and reconciling (not a test)
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench.operate

bench-density: ## measure many workspaces on one machine (not a test); BENCH_ARGS="--number 20" roughly
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench.density $(BENCH_ARGS)

bench-volume: ## measure reads of 300,000 runs against their SQL alone (not a test)
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench.volume

bench-data-plane: ## measure live streams, files and previews against their floors (not a test)
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench.data_plane $(BENCH_ARGS)

bench-egress: ## measure the egress proxy against connections without it (not a test)
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench.egress

bench-recovery: ## measure how long the API is away when any one process is killed (not a test)
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench.recovery

bench-cluster: ## measure workspaces as Pods and placement over engines (not a test); needs a cluster
	@$(UP) prepare-test >&2
	@$(TEST_RUN) python -m tests.bench.cluster $(BENCH_ARGS)
