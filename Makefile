.PHONY: help kernels

help:  ## Show what can be made.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ \t/'

kernels:  ## Compile every kernel for every target without a GPU, and tabulate what it takes (hours; may be stopped).
	python -m attncc.check.offline specs/ -o generated/KERNELS.md
