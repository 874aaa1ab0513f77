# What people type: `make` lists it. Every target sets up what it needs on a fresh machine, and hands NAME=value on as
# --name=value to the program that it runs, which knows the names that it takes, and their defaults.
PYTHON ?= python3
VENV   ?= .venv
SHELL         := /bin/bash
.SHELLFLAGS   := -euo pipefail -c
help:  ## List the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r name text; do printf '%-18s %s\n' "$$name" "$$text"; done
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))
# What people type stays as it is typed: make expands no `$` in it (also where it hands it on to another make), and
# recipes read it as "$$typed_NAME" from the environment, so that no shell reads it as a command either.
quoted = '$(subst ','\'',$(1))'
typed := $(filter-out SHELL MAKE% -%,$(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name))))
odd   := $(shell printf '%s\n' $(foreach name,$(typed),$(call quoted,$(name))) | grep -vxE '[A-Z_]*')
$(if $(odd),$(error no such variable: $(odd). Names are capital letters and _, such as VERSION=v28))
$(foreach name,$(typed) PYTHON VENV,$(if $(filter command environment,$(firstword $(origin $(name)))),$(eval override export $(name) := $$(value $(name)))))
$(foreach name,$(typed) PYTHON VENV,$(eval export typed_$(name) = $$($(name))))
other      =# names that are no options of the program
by         =# options that make adds
first      =# what is done before: what trains is exported, so that an edited notebook counts
needed     = [ -n "$${typed_$(1):-}" ] || { echo 'there is no $(1): make $@ $(1)=$(2)' >&2; exit 2; };
given      = $(filter $(1),$(typed))
option     = --$(shell tr A-Z_ a-z- <<< $(1))=$$typed_$(1)
parameters = $(foreach name,$(filter-out PYTHON VENV $(other),$(typed)),"$(call option,$(name))")
options    = $(foreach name,$(filter-out PYTHON VENV $(other),$(typed)),$${typed_$(name):+"$(call option,$(name))"})  # not empty
# The model in OUT or of VERSION; where nothing names a run and none is trained, the one that this repository publishes.
run     = $(if $(call given,$(filter OUT,$(other))),$$typed_OUT,outputs/$${typed_VERSION:-v28})
trained = $(if $(call given,$(filter OUT VERSION,$(other)))$(wildcard outputs/v28/model/splade.json),$(run),$(or $(wildcard splade_nb/released),$(run)))
model   = $(if $(call given,MODEL),,"--model=$(trained)")
texts   = $(if $(call given,DATA),,--data=mini)
bin      := $$typed_VENV/bin
notebook := "$(bin)/python" docs/run_notebook.py
export OMP_WAIT_POLICY := PASSIVE# waiting threads sleep: spinning ones starve each other where processes share few cores
export PYTHONDONTWRITEBYTECODE :=# compiled modules are kept: an image that sets it lets every process compile torch anew
train:  ## Train VERSION (RECIPE, SCALE, DATA, SEED; SETTINGS as JSON or a file) into OUT and write OUT/report.html
resume:  ## Go on with the run in OUT from its last checkpoint
train-distributed:  ## The same in PROCESSES processes (auto: one for each GPU); SCALE_BATCH=True: a whole batch for each
resume-distributed:  ## Go on with such a run
report:  ## Write OUT/report.html again, of a run by torchrun or the command line too
pretrain:  ## Pretrain a masked language model on the texts in DATA for TOKENS (SCALE, BACKBONE, SEED, SETTINGS) into OUT
resume-pretrain:  ## Go on with the pretraining in OUT from its last checkpoint
compare:  ## Put the runs in outputs/ side by side in outputs/compare.html
evaluate-full:  ## Judge MODEL, BM25 and DENSE on COLLECTIONS (SAMPLE=10000 for the subsamples) into OUT/report.html (outputs/full)
evaluate-board:  ## Run MTEB(kor, v2)'s retrieval tasks, or TASKS (also collections, SPLIT), on MODEL by mteb into OUT/report.html (outputs/board)
study:  ## Measure what is missing in STUDY (SETTINGS: its parameters as JSON) and write outputs/studies/STUDY.html
rehearse:  ## Rehearse full scale on a CPU with the triplets in DATA (else made ones) and write outputs/studies/rehearsal.html
study: export OMP_NUM_THREADS = 1
evaluate-full evaluate-board: other = VERSION
evaluate-full evaluate-board: by = $(model)
study: first = $(call needed,STUDY,gates. nbs/studies has them all)
train resume train-distributed resume-distributed pretrain resume-pretrain train-% after-%: first = "$(bin)/nbdev_export" &&
train resume train-distributed resume-distributed report pretrain resume-pretrain compare evaluate-full evaluate-board study rehearse: environment
	$(first) $(notebook) $@ $(by) $(parameters)
# One version by its name: make train-v26, resume-v28, logs-v28, tensorboard-v28, train-v28-bg, after-v27-v28.
train-% resume-% logs-% tensorboard-% after-% eval-%: export name = $*
train-%-bg: environment ; @$(first) $(notebook) background --name="$$name" $(parameters)
after-%: environment ; $(first) $(notebook) after --name="$$name" $(parameters)
train-%: ; $(MAKE) --no-print-directory train VERSION="$$name" OUT="outputs/$$name"
resume-%: ; $(MAKE) --no-print-directory resume VERSION="$$name" OUT="outputs/$$name"
logs-%: ; tail -n 40 -F "outputs/$$name/train.log"
tensorboard-%: environment ; "$(bin)/tensorboard" --logdir="outputs/$$name"
eval-%-language: ; @$(MAKE) --no-print-directory evaluate WHAT=language VERSION="$$name"
eval-%-context: ; @$(MAKE) --no-print-directory evaluate WHAT=context VERSION="$$name"
data:  ## List the public sets, or get NAME (FROM a folder or address, INTO a folder; NAME=triplets: about TRIPLETS; NAME=multilingual-e5-small: an encoder)
fit:  ## Make a model from the documents in DATA alone, without questions (SEED, SETTINGS), into OUT
search:  ## Search DATA for QUERY with MODEL (ENGINE=exact, INDEX the address of a server, HYBRID=1 adds dense vectors); a second search encodes nothing
serve:  ## Open the search page over DATA with MODEL (ENGINE, HYBRID, PORT) on this machine, or on its address HOST
evaluate:  ## Judge MODEL on the collection DATA (SPLIT, HYBRID; WHAT=language or context); the last line is JSON
export:  ## Write MODEL for sentence-transformers, mlm, onnx, onnx-int8, opensearch, elasticsearch or vespa (TO; losses on DATA) into EXPORT; PUSH=user/model takes it to the hub (LICENCE of the weights)
release:  ## Write the model of the finished run MODEL with ONNX, OpenSearch files, card and hashes into EXPORT (LICENCE of the weights)
search serve evaluate export release: other = OUT VERSION EXPORT
search serve evaluate: by = $(model) $(texts)
search: first = $(call needed,QUERY,"한복 입고 경복궁")
fit: by = $(texts)
export: by = $(model) $${typed_EXPORT:+--out="$$typed_EXPORT"}
release: by = $(model) --out="$${typed_EXPORT:-outputs/release}"
data fit search serve evaluate export release clean-search clean-prepared: environment
	@$(first) "$(bin)/python" -m splade_nb.cli $@ $(by) $(options)
bench: environment ; @"$(bin)/python" benchmarks/run.py $(options)  ## Measure against sentence-transformers (PART=head, step, pooling, start, encode or engines; FORCE=1 again) and write their pages in docs
gpu: environment ; @"$(bin)/python" benchmarks/gpu.py $(options)  ## Measure what only a GPU can show (MINUTES, STAGE, FORCE=1; DEVICE=cpu for a tiny trial) and write docs/gpu.md; PACK=folder packs all of it for a machine without a network
# One thread a process. No check asks a hub. A tutorial's Korean twin holds the same code, as tests/test_house.py proves.
test test-all: export OMP_NUM_THREADS = 1
test test-all notebooks: export HF_HUB_OFFLINE = 1
test: environment  ## Check what needs no GPU in minutes: the library's notebooks but the two longest, and tests but for slow proofs and the laboratory
test-all: environment  ## Check all that needs no GPU, all notebooks, the site and slow proofs too, as CI does
test-weekly: environment docs ; OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$(bin)/python" -m pytest -n 2 -m weekly  ## Check the proofs of a minute of which test-all runs a part
test: export left_out = --skip_folder_re '^([_.]|tutorials|studies|korean|9_lab)' --skip_file_re '^([_.]|15_check|09_release)'# the longest
test-all: export left_out = --skip_folder_re '^([_.]|tutorials|studies|[0-6]_)'# run by tests, which compare outputs
test test-all:
	tests/in_step.sh "$(bin)"
	$(MAKE) --no-print-directory --jobs 2 notebooks $(if $(filter test-all,$@),docs)
	"$(bin)/python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not $(if $(filter test,$@),slow and not )weekly'
notebooks: environment
	"$(bin)/nbdev_test" --n_workers 2 --skip_file_glob '*_ko.ipynb' $(left_out)
browser: environment ; @"$(bin)/python" docs/browser.py docs/_build/browser  ## Write copies of notebooks for Colab and Kaggle, which install this commit, into docs/_build/browser
faults: environment ; @"$(bin)/python" docs/fault_table.py  ## Let every fault happen to a run and write docs/faults.md
lock: environment ; @docs/lock.sh "$(bin)"  ## Remake constraints.txt: newest versions that fit together
docs: environment ; @docs/build.sh "$(bin)"  ## Build the site in docs/_build/html
lab: environment ; @"$(bin)/jupyter" lab nbs/index.ipynb  ## Open the notebooks in JupyterLab
tensorboard: environment ; @"$(bin)/tensorboard" --logdir outputs  ## Watch the curves of the runs in outputs/
opensearch:  ## Start an OpenSearch for a trial on http://localhost:9200; deploy/compose.yaml says how
	@docker compose version > /dev/null 2>&1 || { echo 'make opensearch needs docker with its compose plugin: docs.docker.com/get-docker'; exit 1; }
	docker compose -f deploy/compose.yaml up --detach --build --wait
clean-search:  ## Remove the saved copies under outputs/.search whose model or texts are gone
clean-prepared:  ## Remove prepared training data (outputs/.prepared) that nothing has used for DAYS (30) days; DAYS=0 removes all
clean:  ## Remove what was built; runs and the environment stay
	rm -rf _proc docs/_build docs/nbs docs/node_modules docs/_static/katex docs/_static/mermaid.min.js build ./*.egg-info .pytest_cache
	find . -path "./$$typed_VENV" -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
# The environment holds its own path: half made, or copied from elsewhere, it is made anew.
own = [ "$$(cat "$$typed_VENV/.ready" 2> /dev/null)" = "$$(pwd -P)" ]
environment:
	@$(own) && ! [ pyproject.toml -nt "$$typed_VENV/.ready" ] && ! [ constraints.txt -nt "$$typed_VENV/.ready" ] \
	  || $(MAKE) --no-print-directory install
install:
	$(own) || "$$typed_PYTHON" -m venv --clear "$$typed_VENV"
	@printf 'installing into %s, once\n' "$$typed_VENV"
	"$(bin)/python" -m pip install -q --no-compile -c constraints.txt -e '.[all]'  # Python compiles a module when it is first imported
	pwd -P > "$$typed_VENV/.ready"
