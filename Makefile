PYTHON ?= python3
VENV := .venv$(TORCH:%=-%)$(TRANSFORMERS:%=-tf%)
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: profile test test-browser test-scripts lint format clean report gpu-check wheel mutants

## make profile: set up, then run one forward and backward pass of BERT-large and report
profile: $(READY)
	$(BIN)/opanatomy profile google-bert/bert-large-uncased --batch 4

## make test: the whole test suite, three at once: many tests wait for processes (compiled modules are kept whatever the environment says: many tests start Python).
## TORCH=2.15.0 and TRANSFORMERS=4.57.0 run it on other versions than those of constraints.txt, in an environment of
## their own (6 GB, never in CI). PYTHON=python3.13 is another Python: for a checkout without .venv.
test: $(READY)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal

## make test-browser: the pages of twelve reports in a real browser (apt install chromium; CHROMIUM=PATH is another one)
test-browser: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadscope --exhaustive tests/pages/browser

## make test-scripts: opanatomy run on scripts of other frameworks, which it installs in .venv-scripts (6 GB, never in CI)
SCRIPTS := .venv-scripts
test-scripts:
	$(PYTHON) -m venv $(SCRIPTS)
	$(SCRIPTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r tests/scripts/requirements.txt -e '.[dev,mcp]'
	OMP_NUM_THREADS=1 $(SCRIPTS)/bin/python -m pytest -n 2 --exhaustive tests/loops/test_run.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What is hardly imported, half of all there is: the rest compiles itself when it is.
NOT_COMPILED := /tests?/|/transformers/models/|/(pip|setuptools|mypy|mypyc|torchgen)/
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	sed '$(TORCH:%=s/^torch==.*/torch==%/;)$(TRANSFORMERS:%=s/^transformers==.*/transformers==%/;/^huggingface-hub==/d;/^tokenizers==/d)' constraints.txt >$(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(VENV)/constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(VENV)/constraints.txt -e '.[dev,browser,mcp]'
	-$(BIN)/python -m compileall -q -j 0 -x '$(NOT_COMPILED)' $(VENV)/lib >/dev/null 2>&1
	touch $@

## make gpu-check: the first thing to run on a machine with a GPU; renews what the tests keep of devices.
## It runs in .venv where there is one, else in the python that has torch (nothing is installed).
gpu-check:
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m tests.gpu --renew tests $(if $(OUT),--out $(OUT))

## make wheel: build the wheel and run it from outside the checkout
wheel: $(READY)
	.ci/wheel $(BIN)/python

## make mutants: small faults in the analysis, one at a time, and which of them no test notices
mutants: $(READY)
	$(BIN)/python benchmarks/mutants.py $(MUTANTS)

clean:
	rm -rf $(VENV) build *.egg-info

## make report: run BERT-large and renew reports/ and what pages show of it
report: $(READY)
	$(BIN)/opanatomy profile google-bert/bert-large-uncased --batch 4 >/dev/null
	$(BIN)/python reports/renew.py bert-large-uncased.trace.json.gz
