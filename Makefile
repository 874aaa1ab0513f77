# What people type. Every target sets up what it needs on a fresh machine; `make` alone lists them.
PYTHON  ?= python3
VENV    ?= .venv
# What follows counts only where it is typed after make: shells, WSL and CI set NAME, DATA, PORT or VERSION themselves.
VERSION  = v28
RECIPE   = corrected
SCALE    = auto
DATA     = mini
SEED     = 42
OUT      = outputs/$(VERSION)
MODEL    = $(trained)
SPLIT    = test
WHAT     =
QUERY    =
ENGINE   = exact
INDEX    =
HYBRID   =
HOST     =
PORT     = 8000
SETTINGS  =
STUDY    =
PART     =
FULL     = outputs/full
COLLECTIONS  = ko_strategyqa,miracl_ko,mrtydi_ko
SAMPLE   = 0
DENSE    = BAAI/bge-m3
BOARD    = outputs/board
TASKS    =
FORCE    =
DAYS     = 30
TEST     =
SYSTEMS  =
SEEDS    =
STEPS    =
RESULTS  =
TO       = sentence-transformers
EXPORT   = $(OUT)/$(TO)
PUSH     =
LICENCE  = unknown
NAME     =
FROM     =
INTO     =
TRIPLETS  =
MINUTES  = 40
STAGE    =
DEVICE   = cuda
PACK     =
PROCESSES  = auto
SCALE_BATCH  = False
TOKENS   =
BACKBONE  =
ENTRY    =

# A misspelt variable must not train something else in silence.
known   := PYTHON VENV VERSION RECIPE SCALE DATA SEED OUT MODEL SPLIT WHAT QUERY ENGINE INDEX HYBRID HOST PORT SETTINGS PART FORCE DAYS FULL COLLECTIONS SAMPLE DENSE BOARD TASKS STUDY TEST SYSTEMS SEEDS STEPS RESULTS TO EXPORT PUSH LICENCE NAME FROM INTO TRIPLETS MINUTES STAGE DEVICE PACK PROCESSES SCALE_BATCH TOKENS BACKBONE ENTRY
given   := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
unknown := $(filter-out $(known) SHELL MAKE% -%,$(given))

# What people type stays as it is typed: make expands no `$` in it (also where it hands it on to another make), and
# recipes read it as "$$typed_NAME" from the environment, so that no shell reads it as a command either.
from_user = $(filter command environment,$(firstword $(origin $(1))))
data_given := $(call from_user,DATA)
out_given := $(call from_user,OUT)
version_given := $(call from_user,VERSION)
export_given := $(call from_user,EXPORT)
# The model in OUT; where nothing names a run and none is trained, the one that this repository publishes.
trained = $(if $(out_given)$(version_given)$(wildcard $(OUT)/model/splade.json),$(OUT),$(or $(wildcard splade_nb/released),$(OUT)))
$(foreach name,$(known),$(if $(call from_user,$(name)),$(eval override export $(name) := $$(value $(name)))))
$(foreach name,$(known),$(eval export typed_$(name) = $$($(name))))

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

quoted   = '$(subst ','\'',$(1))'
told     = import sys; from splade_nb.config.files import alternatives; print(alternatives(sys.argv[1], sys.argv[2:]))
asked    = $(foreach name,$(firstword $(unknown)) $(known),$(call quoted,$(name)))
proposal = $(shell $(call quoted,$(PYTHON)) -c '$(told)' $(asked) 2> /dev/null)
$(if $(unknown),$(error no such variable: $(unknown): $(or $(proposal),Known: $(known))))

.PHONY: train resume fit pretrain resume-pretrain train-distributed resume-distributed report evaluate evaluate-full evaluate-board compare study leaderboard record rehearse data search serve opensearch export release test test-all notebooks faults bench gpu docs browser docs-assets lab tensorboard lock clean clean-search clean-prepared help

# Waiting threads sleep: spinning ones starve each other where several processes share few cores.
export OMP_WAIT_POLICY := PASSIVE

bin        := $$typed_VENV/bin
ready      := environment
assets     := docs/_static/mermaid.min.js
parameters  = -r version "$$typed_VERSION" -r recipe "$$typed_RECIPE" -r scale "$$typed_SCALE" -r data "$$typed_DATA" \
              -p seed "$$typed_SEED" -r out "$$typed_OUT" -r settings "$$typed_SETTINGS"
papermill  := "$(bin)/papermill" --log-output --no-progress-bar
report     := "$(bin)/python" docs/report_html.py
# papermill fills {name} into a path; doubled braces stay braces. An option is handed on where it is not empty.
path        = $$(sed 's/[{}]/&&/g' <<< "$$typed_$(1)")
option      = $${typed_$(1):+"--$(2)=$$typed_$(1)"}
parameter   = $${typed_$(1):+-r $(2) "$$typed_$(1)"}

# What make runs is exported first: an edited notebook is what trains. The lock's date says when a run was launched.
begin = "$(bin)/nbdev_export" && mkdir -p "$$typed_OUT" && rm -f "$$typed_OUT/report.html" && touch "$$typed_OUT/.lock"
shown = $(papermill) nbs/train.ipynb "$(call path,OUT)/train.ipynb" -r out "$$typed_OUT" -p finished True
train: $(ready)  ## Train VERSION (RECIPE, SCALE, DATA, SEED; SETTINGS as JSON or a file) into OUT and write OUT/report.html
resume: $(ready)  ## Go on with the run in OUT from its last checkpoint
resume: parameters += -p resume True
train resume:
	$(begin)
	$(papermill) nbs/train.ipynb "$(call path,OUT)/train.ipynb" $(parameters)
	$(report) "$$typed_OUT/train.ipynb" "$$typed_OUT/report.html"

train-distributed: $(ready)  ## The same in PROCESSES processes (auto: one for each GPU); SCALE_BATCH=True: a whole batch for each
resume-distributed: $(ready)  ## Go on with such a run
resume-distributed: resumed := --resume
train-distributed resume-distributed:
	$(begin)
	"$(bin)/python" -m torch.distributed.run --standalone "--nproc-per-node=$$typed_PROCESSES" \
	  -m splade_nb.training $(resumed) --set "recipe=$$typed_RECIPE" "scale=$$typed_SCALE" "data=$$typed_DATA" \
	  "seed=$$typed_SEED" "out=$$typed_OUT" "settings=$$typed_SETTINGS" "scale_batch=$$typed_SCALE_BATCH" \
	  -- "$$typed_VERSION"
	$(shown)
	$(report) "$$typed_OUT/train.ipynb" "$$typed_OUT/report.html"

# A backbone from plain texts; what it writes lies in outputs/pretrain where OUT is not given.
$(if $(out_given),,$(eval pretrain resume-pretrain: OUT = outputs/pretrain))
pretrained = -r data "$$typed_DATA" -r scale "$$typed_SCALE" $(call parameter,BACKBONE,backbone) \
             $${typed_TOKENS:+-p tokens "$$typed_TOKENS"} -p seed "$$typed_SEED" -r out "$$typed_OUT" -r settings "$$typed_SETTINGS"
pretrain: $(ready)  ## Pretrain a masked language model on the texts in DATA for TOKENS (SCALE, BACKBONE, SEED, SETTINGS) into OUT
resume-pretrain: $(ready)  ## Go on with the pretraining in OUT from its last checkpoint
resume-pretrain: pretrained += -p resume True
pretrain resume-pretrain:
	$(begin)
	$(papermill) nbs/pretrain.ipynb "$(call path,OUT)/pretrain.ipynb" $(pretrained)
	$(report) "$$typed_OUT/pretrain.ipynb" "$$typed_OUT/report.html"

# V27 is V26 with travel data in every phase: where its two folders are and DATA names nothing, it learns from both.
comma := ,
own_data = $(if $(data_given),,$(if $(filter v27,$(1)),$(and $(wildcard data/v24.0),$(wildcard data/v27.0),DATA=data/v24.0$(comma)data/v27.0)))
# One version by its name: make train-v26, resume-v28, logs-v28, tensorboard-v28, train-v28-bg, after-v27-v28.
train-% resume-% logs-% tensorboard-% after-%: export name = $*
train-%-bg: $(ready)
	mkdir -p "outputs/$$name"
	exec 9> "outputs/$$name/.launch"; \
	flock --nonblock 9 || { echo "outputs/$$name: is training in the background: make logs-$$name" >&2; exit 2; }; \
	nohup $(MAKE) --no-print-directory train VERSION="$$name" OUT="outputs/$$name" $(call own_data,$*) > "outputs/$$name/train.log" 2>&1 &
	@printf 'training %s in the background: make logs-%s\n' "$$name" "$$name"
train-%: ; $(MAKE) --no-print-directory train VERSION="$$name" OUT="outputs/$$name" $(call own_data,$*)
resume-%: ; $(MAKE) --no-print-directory resume VERSION="$$name" OUT="outputs/$$name"
logs-%: ; tail -n 40 -F "outputs/$$name/train.log"
tensorboard-%: $(ready) ; "$(bin)/tensorboard" --logdir="outputs/$$name"
after-%: $(ready)
	@[[ "$$name" == *-* ]] || { echo 'two versions: make after-v27-v28' >&2; exit 2; }
	@folder="outputs/$${name%%-*}"; \
	for lock in .launch .lock; do [ ! -e "$$folder/$$lock" ] || flock "$$folder/$$lock" true; done; \
	[ "$$folder/summary.json" -nt "$$folder/.lock" ] \
	  || { echo "$$folder: its last run did not finish, or there was none: nothing is trained" >&2; exit 1; }
	$(MAKE) --no-print-directory "train-$${name#*-}"

$(if $(out_given),,$(eval fit: OUT = outputs/fit))
fit: $(ready)  ## Make a model from the documents in DATA alone, without questions (SEED, SETTINGS), into OUT
	@"$(bin)/python" -m splade_nb.cli fit --data="$$typed_DATA" --out="$$typed_OUT" --seed="$$typed_SEED" $(call option,SETTINGS,settings)

report: $(ready)  ## Write OUT/report.html again, of a run by torchrun or the command line too
	{ [ -e "$$typed_OUT/train.ipynb" ] && ! [ "$$typed_OUT/summary.json" -nt "$$typed_OUT/train.ipynb" ]; } || $(shown)
	$(report) "$$typed_OUT/train.ipynb" "$$typed_OUT/report.html"

data: $(ready)  ## List the public sets, or get NAME (FROM a folder or address, INTO a folder; NAME=triplets: about TRIPLETS; NAME=multilingual-e5-small: an encoder)
	@"$(bin)/python" -m splade_nb.cli data $(call option,NAME,name) $(call option,FROM,from) $(call option,INTO,into) \
	  $(call option,TRIPLETS,triplets)

evaluate: $(ready)  ## Judge MODEL on the collection DATA; the last line is JSON
	@"$(bin)/python" -m splade_nb.cli evaluate \
	  --model="$$typed_MODEL" --data="$$typed_DATA" --split="$$typed_SPLIT" $(call option,WHAT,what) $(call option,HYBRID,hybrid)

# One part of an evaluation of outputs/v28, or of OUT: make eval-v28-language, eval-v28-context.
eval-%-language eval-%-context: export name = $*
eval-%-language: ; @$(MAKE) --no-print-directory evaluate WHAT=language VERSION="$$name"
eval-%-context: ; @$(MAKE) --no-print-directory evaluate WHAT=context VERSION="$$name"

judged = -r model "$$typed_MODEL" -r collections "$$typed_COLLECTIONS" -p sample "$$typed_SAMPLE" \
         -r dense "$$typed_DENSE" -r out "$$typed_FULL"
evaluate-full: $(ready)  ## Judge MODEL, BM25 and DENSE on COLLECTIONS (SAMPLE=10000 for the subsamples) into FULL/report.html
	mkdir -p "$$typed_FULL" && rm -f "$$typed_FULL/report.html"
	$(papermill) nbs/evaluate_full.ipynb "$(call path,FULL)/evaluate_full.ipynb" $(judged)
	$(report) "$$typed_FULL/evaluate_full.ipynb" "$$typed_FULL/report.html"

# The numbers that the board shows, computed by mteb itself.
boarded = -r model "$$typed_MODEL" -r tasks "$$typed_TASKS" -r split "$$typed_SPLIT" -r out "$$typed_BOARD"
evaluate-board: $(ready)  ## Run MTEB(kor, v2)'s retrieval tasks, or TASKS (also collections, SPLIT), on MODEL by mteb into BOARD/report.html
	mkdir -p "$$typed_BOARD" && rm -f "$$typed_BOARD/report.html"
	$(papermill) nbs/evaluate.ipynb "$(call path,BOARD)/evaluate.ipynb" $(boarded)
	$(report) "$$typed_BOARD/evaluate.ipynb" "$$typed_BOARD/report.html"

compare: $(ready)  ## Put the runs in outputs/ side by side in outputs/compare.html
	mkdir -p outputs && rm -f outputs/compare.html
	$(papermill) nbs/compare.ipynb outputs/compare.ipynb
	$(report) outputs/compare.ipynb outputs/compare.html

# A study is a notebook of nbs/studies. It measures the parts that are not kept yet, and keeps each when it is done.
study leaderboard: export OMP_NUM_THREADS = 1
study: $(ready)  ## Measure what is missing in STUDY (SETTINGS: its parameters as JSON) and write outputs/studies/STUDY.html
	@[ -n "$$typed_STUDY" ] || { echo 'there is no STUDY: make study STUDY=gates. nbs/studies holds them' >&2; exit 2; }
	mkdir -p outputs/studies
	$(papermill) "nbs/studies/$(call path,STUDY).ipynb" "outputs/studies/$(call path,STUDY).ipynb" \
	  $${typed_SETTINGS:+-y "$$typed_SETTINGS"} -p measure True
	$(report) "outputs/studies/$$typed_STUDY.ipynb" "outputs/studies/$$typed_STUDY.html"

# One model for each system learns from all of DATA; TEST is judged and never learned from. Lists are joined by commas.
leaderboard: $(ready)  ## Compare SYSTEMS (all) on DATA and TEST (SEEDS, STEPS, RESULTS) and write outputs/studies/leaderboard.html
	mkdir -p outputs/studies
	$(papermill) nbs/studies/leaderboard.ipynb outputs/studies/leaderboard.ipynb -p measure True -r data "$$typed_DATA" \
	  $(call parameter,TEST,test) $(call parameter,SYSTEMS,systems) $(call parameter,SEEDS,seeds) \
	  $(call parameter,STEPS,steps) $(call parameter,RESULTS,results)
	$(report) outputs/studies/leaderboard.ipynb outputs/studies/leaderboard.html

record: $(ready)  ## Check ENTRY, a file in the form of docs/records_template.json, against the last record and the kept results
	@[ -n "$$typed_ENTRY" ] || { echo 'there is no ENTRY: make record ENTRY=mine.json. docs/records.md says how to write one' >&2; exit 2; }
	@"$(bin)/python" docs/records_page.py --entry="$$typed_ENTRY"

# The full-scale path without a GPU: three versions at three sizes with up to eight processes.
rehearse: $(ready)  ## Rehearse full scale on a CPU with the triplets in DATA (else made ones) and write outputs/studies/rehearsal.html
	mkdir -p outputs/studies
	$(papermill) nbs/studies/rehearsal.ipynb outputs/studies/rehearsal.ipynb -p measure True \
	  $(if $(data_given),$(call parameter,DATA,data)) $${typed_SETTINGS:+-y "$$typed_SETTINGS"}
	$(report) outputs/studies/rehearsal.ipynb outputs/studies/rehearsal.html

search: $(ready)  ## Search DATA for QUERY with MODEL (ENGINE=exact, INDEX the address of a server, HYBRID=1 adds dense vectors); a second search encodes nothing
	@[ -n "$$typed_QUERY" ] || { echo 'there is no QUERY: make search QUERY="한복 입고 경복궁"' >&2; exit 2; }
	@"$(bin)/python" -m splade_nb.serving.searcher --model="$$typed_MODEL" --data="$$typed_DATA" \
	  --engine="$$typed_ENGINE" --index="$$typed_INDEX" --query="$$typed_QUERY" $(call option,HYBRID,hybrid)

serve: $(ready)  ## Open the search page over DATA with MODEL (ENGINE, HYBRID, PORT) on this machine, or on its address HOST
	@"$(bin)/python" -m splade_nb.serving.web --model="$$typed_MODEL" --data="$$typed_DATA" \
	  --engine="$$typed_ENGINE" --index="$$typed_INDEX" --port="$$typed_PORT" $(call option,HOST,host) $(call option,HYBRID,hybrid)

export: $(ready)  ## Write MODEL for sentence-transformers, mlm, onnx, onnx-int8, opensearch, elasticsearch or vespa (TO; losses on DATA) into EXPORT; PUSH=user/model takes it to the hub (LICENCE of the weights)
	@"$(bin)/python" -m splade_nb.cli export --model="$$typed_MODEL" --to="$$typed_TO" \
	  --out="$$typed_EXPORT" --licence="$$typed_LICENCE" $(call option,PUSH,push) $(if $(data_given),$(call option,DATA,data))

release: $(ready)  ## Write the model of the finished run MODEL with ONNX, OpenSearch files, card and hashes into EXPORT (LICENCE of the weights)
	@"$(bin)/python" -m splade_nb.cli release --model="$$typed_MODEL" --licence="$$typed_LICENCE" \
	  --out="$(if $(export_given),$$typed_EXPORT,outputs/release)"

opensearch:  ## Start an OpenSearch for a trial on http://localhost:9200; deploy/compose.yaml says how
	@docker compose version > /dev/null 2>&1 || { echo 'make opensearch needs docker with its compose plugin: docs.docker.com/get-docker'; exit 1; }
	docker compose -f deploy/compose.yaml up --detach --build --wait

# One thread a process. No check asks a hub.
test test-all: export OMP_NUM_THREADS = 1
test test-all notebooks: export HF_HUB_OFFLINE = 1
test: selected := -m 'not slow'
test: checks := notebooks
test: $(ready)  ## Check what needs no GPU: notebooks, and tests but for slow proofs
test-all: checks := docs notebooks
test-all: export run_by_tests = --skip_folder_re '^([_.]|tutorials|0_config|1_data)'
test-all: $(ready)  ## Check what needs no GPU, the site and slow proofs too, as CI does
test test-all:
	tests/in_step.sh "$(bin)"
	$(MAKE) --no-print-directory --jobs 2 $(checks)
	"$(bin)/python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(selected)

# A tutorial's Korean twin holds the same code, which tests/test_house.py proves: one of the two is run.
# test-all leaves out what its slow tests run: tutorials (tests/test_browser.py) and what tests/test_outputs.py compares.
notebooks: $(ready)
	"$(bin)/nbdev_test" --n_workers 2 --skip_file_glob '*_ko.ipynb' $(run_by_tests)

faults: $(ready)  ## Let every fault happen to a run and write docs/faults.md
	"$(bin)/python" docs/fault_table.py

bench: $(ready)  ## Measure against sentence-transformers (PART=head, step, pooling, start, encode or engines; FORCE=1 again) and write their pages in docs
	"$(bin)/python" benchmarks/run.py $${typed_FORCE:+--force} $${typed_PART:+-- "$$typed_PART"}

gpu: $(ready)  ## Measure what only a GPU can show (MINUTES, STAGE, FORCE=1; DEVICE=cpu for a tiny trial) and write docs/gpu.md; PACK=folder packs all of it for a machine without a network
	@"$(bin)/python" benchmarks/gpu.py --minutes="$$typed_MINUTES" --device="$$typed_DEVICE" \
	  $(call option,STAGE,stage) $(call option,PACK,pack) $${typed_FORCE:+--force}

docs: $(ready) $(assets)  ## Build the site in docs/_build/html
	rm -rf docs/_build
	"$(bin)/python" docs/build_site.py docs/nbs
	"$(bin)/python" -m sphinx -q -W --keep-going -b html -c docs docs/nbs docs/_build/html
	"$(bin)/python" docs/browser.py docs/_build/browser
	@echo docs/_build/html/index.html

browser: $(ready)  ## Write copies of notebooks for Colab and Kaggle, which install this commit, into docs/_build/browser
	"$(bin)/python" docs/browser.py docs/_build/browser

docs-assets: $(assets)  ## Fetch KaTeX and mermaid for the site, once

lab: $(ready)  ## Open the notebooks in JupyterLab
	"$(bin)/jupyter" lab nbs/index.ipynb

tensorboard: $(ready)  ## Watch the curves of the runs in outputs/
	"$(bin)/tensorboard" --logdir outputs

lock: $(ready)  ## Remake constraints.txt: newest versions that fit together
	"$(bin)/python" -m pip install -q uv
	"$(bin)/uv" pip compile -q pyproject.toml --extra all --extra cluster --python-version 3.11 --upgrade \
	  --no-annotate --no-header --no-emit-index-url -c constraints.in -o constraints.new
	grep -vE '^(nvidia-|cuda-|triton)' constraints.new > constraints.txt && rm constraints.new

clean-search: $(ready)  ## Remove the saved copies under outputs/.search whose model or texts are gone
	@"$(bin)/python" -m splade_nb.serving.searcher clean

clean-prepared: $(ready)  ## Remove prepared training data (outputs/.prepared) that nothing has used for DAYS days; DAYS=0 removes all
	@"$(bin)/python" -m splade_nb.data.prepared "$$typed_DAYS"

clean:  ## Remove what was built; runs and the environment stay
	rm -rf _proc docs/_build docs/nbs docs/node_modules docs/_static/katex $(assets) build ./*.egg-info .pytest_cache
	find . -path "./$$typed_VENV" -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

help:  ## List the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r name text; do printf '%-18s %s\n' "$$name" "$$text"; done

# The environment holds its own path: half made, or copied from elsewhere, it is made anew.
.PHONY: $(ready) install
own   = [ "$$(cat "$$typed_VENV/.ready" 2> /dev/null)" = "$$(pwd -P)" ]
$(ready):
	@$(own) && ! [ pyproject.toml -nt "$$typed_VENV/.ready" ] && ! [ constraints.txt -nt "$$typed_VENV/.ready" ] \
	  || $(MAKE) --no-print-directory install
install:
	$(own) || "$$typed_PYTHON" -m venv --clear "$$typed_VENV"
	@printf 'installing into %s, once\n' "$$typed_VENV"
	"$(bin)/python" -m pip install -q --no-compile -c constraints.txt -e '.[all]'  # Python compiles a module when it is first imported
	pwd -P > "$$typed_VENV/.ready"

$(assets): docs/package.json docs/package-lock.json docs/_static/katex-init.js
	@command -v npm > /dev/null || { echo 'the site needs npm once, to fetch KaTeX and mermaid: install Node.js'; exit 1; }
	cd docs && npm ci --silent && mkdir -p _static/katex/fonts
	cd docs/node_modules/katex/dist && cp katex.min.css ../../../_static/katex/ && cp fonts/*.woff2 ../../../_static/katex/fonts/ \
	  && cat katex.min.js contrib/auto-render.min.js ../../../_static/katex-init.js > ../../../_static/katex/katex.js
	cp docs/node_modules/mermaid/dist/mermaid.min.js $@
