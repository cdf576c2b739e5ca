# Short forms of `python3 dev.py ...`. Make is optional.
.PHONY: demo test quick lint format bench lock clean

demo test lint bench lock:
	python3 dev.py $@

quick:
	python3 dev.py test --quick

format:
	python3 dev.py lint --fix

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis demo-repository
