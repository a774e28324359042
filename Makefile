# Each target is a line of scripts/dev.sh, which works without make too: scripts/dev.sh TARGET
# VENV names the environment's folder (default .venv); ARGS goes to pytest or to the demo: make test ARGS="-k ids"

.PHONY: help demo test test-long test-torch test-ecosystem lint types layers wheel
.DEFAULT_GOAL := help

help:
	@sed -n '4,12s/^#  *//p' scripts/dev.sh

demo test test-long test-torch test-ecosystem lint types layers wheel:
	@bash scripts/dev.sh $@ $(ARGS)
