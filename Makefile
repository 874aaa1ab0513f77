# What people type. Every target sets up what it needs on a fresh machine; `make` alone lists them.
PYTHON  ?= python3
VENV    ?= .venv
VERSION ?= v28
RECIPE  ?= corrected
SCALE   ?= auto
DATA    ?= mini
SEED    ?= 42
OUT     ?= outputs/$(VERSION)
MODEL   ?= $(OUT)
SPLIT   ?= test
ENGINE  ?= exact
INDEX   ?=
PORT    ?= 8000
SETTINGS ?=
PART    ?=
FULL    ?= outputs/full
COLLECTIONS ?= ko_strategyqa,miracl_ko,mrtydi_ko
SAMPLE  ?= 0
DENSE   ?= BAAI/bge-m3
FORCE   ?=
TEST    ?=
SYSTEMS ?=
SEEDS   ?=
STEPS   ?=
RESULTS ?=
TO      ?= sentence-transformers
EXPORT  ?= $(OUT)/$(TO)
PUSH    ?=
LICENCE ?= unknown

# A misspelt variable must not train something else in silence.
known   := PYTHON VENV VERSION RECIPE SCALE DATA SEED OUT MODEL SPLIT QUERY ENGINE INDEX PORT SETTINGS PART FORCE FULL COLLECTIONS SAMPLE DENSE TEST SYSTEMS SEEDS STEPS RESULTS TO EXPORT PUSH LICENCE
given   := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
unknown := $(filter-out $(known) SHELL MAKE% -%,$(given))
$(if $(unknown),$(error no such variable: $(unknown). There are: $(known)))

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: train resume report evaluate evaluate-full compare leaderboard search serve opensearch export test notebooks trial faults bench docs docs-assets lab tensorboard lock clean clean-search help

# Waiting threads sleep: spinning ones starve each other where several processes share few cores.
export OMP_WAIT_POLICY := PASSIVE

bin        := $(VENV)/bin
ready      := $(VENV)/.ready
assets     := docs/_static/mermaid.min.js
parameters  = -r version "$(VERSION)" -r recipe "$(RECIPE)" -r scale "$(SCALE)" -r data "$(DATA)" -p seed "$(SEED)" -r out "$(OUT)" -r settings '$(SETTINGS)'
papermill  := "$(bin)/papermill" --log-output --no-progress-bar
report     := "$(bin)/python" docs/report_html.py

train: $(ready)  ## Train VERSION (RECIPE, SCALE, DATA, SEED; SETTINGS as JSON or a file) into OUT and write OUT/report.html
resume: $(ready)  ## Go on with the run in OUT from its last checkpoint
resume: parameters += -p resume True
train resume:
	mkdir -p "$(OUT)" && rm -f "$(OUT)/report.html"
	$(papermill) nbs/train.ipynb "$(OUT)/train.ipynb" $(parameters)
	$(report) "$(OUT)/train.ipynb" "$(OUT)/report.html"

# One version by its name: make train-v26, resume-v28, logs-v28, tensorboard-v28, train-v28-bg, after-v27-v28.
train-%-bg: $(ready)
	mkdir -p "outputs/$*"
	nohup $(MAKE) --no-print-directory train VERSION=$* OUT="outputs/$*" > "outputs/$*/train.log" 2>&1 &
	@echo 'training $* in the background: make logs-$*'
train-%: ; $(MAKE) --no-print-directory train VERSION=$* OUT="outputs/$*"
resume-%: ; $(MAKE) --no-print-directory resume VERSION=$* OUT="outputs/$*"
logs-%: ; tail -n 40 -F "outputs/$*/train.log"
tensorboard-%: $(ready) ; "$(bin)/tensorboard" --logdir "outputs/$*"
after-%: $(ready)
	first=$(word 1,$(subst -, ,$*)) && flock "outputs/$$first/.lock" true && $(MAKE) --no-print-directory train-$(word 2,$(subst -, ,$*))

report: $(ready)  ## Write OUT/report.html again from OUT/train.ipynb
	$(report) "$(OUT)/train.ipynb" "$(OUT)/report.html"

evaluate: $(ready)  ## Judge MODEL on the collection DATA; the last line is JSON
	@"$(bin)/python" -m splade_nb.run evaluate --model "$(MODEL)" --data "$(DATA)" --split "$(SPLIT)"

evaluate-full: $(ready)  ## Judge MODEL, BM25 and DENSE on COLLECTIONS (SAMPLE=10000 for the subsamples) into FULL/report.html
	mkdir -p "$(FULL)" && rm -f "$(FULL)/report.html"
	$(papermill) nbs/evaluate_full.ipynb "$(FULL)/evaluate_full.ipynb" -r model "$(MODEL)" -r collections "$(COLLECTIONS)" -p sample "$(SAMPLE)" -r dense "$(DENSE)" -r out "$(FULL)"
	$(report) "$(FULL)/evaluate_full.ipynb" "$(FULL)/report.html"

compare: $(ready)  ## Put the runs in outputs/ side by side in outputs/compare.html
	mkdir -p outputs && rm -f outputs/compare.html
	$(papermill) nbs/compare.ipynb outputs/compare.ipynb
	$(report) outputs/compare.ipynb outputs/compare.html

# One model a system learns from all of DATA; TEST is judged and never learned from. Lists are joined by commas.
leaderboard: $(ready)  ## Hold SYSTEMS (all) against each other on DATA and TEST (SEEDS, STEPS, RESULTS) and write docs/leaderboard.md
	OMP_NUM_THREADS=1 "$(bin)/python" experiments/leaderboard.py "$(DATA)" $(foreach name,TEST SYSTEMS SEEDS STEPS RESULTS,$(if $($(name)),--$(shell tr A-Z a-z <<< $(name)) '$($(name))'))

search: $(ready)  ## Search DATA for QUERY with MODEL (ENGINE=exact, INDEX the address of a server); a second search encodes nothing
	@"$(bin)/python" -m splade_nb.box --model "$(MODEL)" --data "$(DATA)" --engine "$(ENGINE)" --index "$(INDEX)" --query "$${QUERY:?give one: make search QUERY=...}"

serve: $(ready)  ## Open the search page over DATA with MODEL (ENGINE, PORT) on this machine
	@"$(bin)/python" -m splade_nb.service --model "$(MODEL)" --data "$(DATA)" --engine "$(ENGINE)" --index "$(INDEX)" --port "$(PORT)"

export: $(ready)  ## Write MODEL for sentence-transformers, mlm or onnx (TO) into EXPORT; PUSH=user/model takes it to the hub (LICENCE of the weights)
	@"$(bin)/python" -m splade_nb.run export --model "$(MODEL)" --to "$(TO)" --out "$(EXPORT)" --licence "$(LICENCE)" $(if $(PUSH),--push "$(PUSH)")

opensearch:  ## Start an OpenSearch for a trial on http://localhost:9200; deploy/compose.yaml says how
	@docker compose version > /dev/null 2>&1 || { echo 'make opensearch needs docker with its compose plugin: docs.docker.com/get-docker'; exit 1; }
	docker compose -f deploy/compose.yaml up --detach --build --wait

# One thread a process, and three processes on two cores: none of them waits for the last notebook.
test: export OMP_NUM_THREADS = 1
test: $(ready)  ## Check everything that needs no GPU, as CI does
	tests/in_step.sh "$(bin)"
	$(MAKE) --no-print-directory --jobs 2 notebooks docs trial
	"$(bin)/python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# A tutorial's Korean twin holds the same code, which tests/test_house.py proves: one of the two is run.
notebooks: $(ready)
	"$(bin)/nbdev_test" --n_workers 2 --skip_file_glob '*_ko.ipynb'

trial: $(ready)
	folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(papermill) nbs/train.ipynb "$$folder/train.ipynb" -r version v28 -r scale mini -r data mini -r out "$$folder" -p max_steps 6

faults: $(ready)  ## Let every fault happen to a run and write docs/faults.md
	"$(bin)/python" docs/fault_table.py

bench: $(ready)  ## Measure against sentence-transformers (PART=head, step, encode, gpu or engines; FORCE=1 again) and write docs/benchmarks.md, docs/engines.md
	"$(bin)/python" benchmarks/run.py $(PART) $(if $(FORCE),--force)

docs: $(ready) $(assets)  ## Build the site in docs/_build/html
	rm -rf docs/_build
	"$(bin)/python" docs/build_site.py docs/nbs
	"$(bin)/python" -m sphinx -q -W --keep-going -b html -c docs docs/nbs docs/_build/html
	@echo docs/_build/html/index.html

docs-assets: $(assets)  ## Fetch KaTeX and mermaid for the site, once

lab: $(ready)  ## Open the notebooks in JupyterLab
	"$(bin)/jupyter" lab nbs/index.ipynb

tensorboard: $(ready)  ## Watch the curves of the runs in outputs/
	"$(bin)/tensorboard" --logdir outputs

lock: $(ready)  ## Remake constraints.txt: newest versions that fit together
	"$(bin)/python" -m pip install -q uv
	"$(bin)/uv" pip compile -q pyproject.toml --extra dev --extra docs --extra engines --extra export --extra serve --python-version 3.11 --upgrade \
	  --no-annotate --no-header --no-emit-index-url -c constraints.in -o constraints.new
	grep -vE '^(nvidia-|cuda-|triton)' constraints.new > constraints.txt && rm constraints.new

clean-search: $(ready)  ## Remove the copies of searched texts under outputs/.boxes that no model or text of now leads to
	@"$(bin)/python" -m splade_nb.box clean

clean:  ## Remove what was built; runs and the environment stay
	rm -rf _proc docs/_build docs/nbs docs/node_modules docs/_static/katex $(assets) build ./*.egg-info .pytest_cache
	find . -path "./$(VENV)" -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

help:  ## List the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r name text; do printf '%-12s %s\n' "$$name" "$$text"; done

# The environment holds its own path: half made, or copied from elsewhere, it is made anew.
ifneq ($(shell cat "$(ready)" 2>/dev/null),$(CURDIR))
.PHONY: $(ready)
endif
$(ready): pyproject.toml constraints.txt
	[ "$$(cat "$@" 2>/dev/null)" = "$(CURDIR)" ] || $(PYTHON) -m venv --clear "$(VENV)"
	@echo 'installing into $(VENV), once'
	"$(bin)/python" -m pip install -q --no-compile -c constraints.txt -e '.[dev,docs,engines,export,serve]'
	"$(bin)/python" -m compileall -qq -j 0 -x /tests/ "$(VENV)/lib" || true  # what pip does on one core
	echo "$(CURDIR)" > "$@"

$(assets): docs/package.json docs/package-lock.json docs/_static/katex-init.js
	@command -v npm > /dev/null || { echo 'the site needs npm once, to fetch KaTeX and mermaid: install Node.js'; exit 1; }
	cd docs && npm ci --silent && mkdir -p _static/katex/fonts
	cd docs/node_modules/katex/dist && cp katex.min.css ../../../_static/katex/ && cp fonts/*.woff2 ../../../_static/katex/fonts/ \
	  && cat katex.min.js contrib/auto-render.min.js ../../../_static/katex-init.js > ../../../_static/katex/katex.js
	cp docs/node_modules/mermaid/dist/mermaid.min.js $@
