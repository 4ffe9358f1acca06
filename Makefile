# Every target makes .venv by itself; nothing else needs installing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint bench clean

demo: $(STAMP)
	$(BIN)/python examples/minilm.py

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2

# mypy reads the package as it is installed, because two of its folders lie outside neuron_eager/ in this tree.
lint: $(STAMP)
	$(BIN)/ruff check .
	rm -rf build
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --target build/lint .
	cd build/lint && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml -p neuron_eager

bench: $(STAMP)
	for script in bench/*.py; do $(BIN)/python $$script || exit 1; done

$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "setuptools>=77" wheel
	$(BIN)/pip install --quiet --no-build-isolation -c constraints.txt -e ".[demo,dev]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
