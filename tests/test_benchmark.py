"""The three public collections as local stand-ins of the same schema: files as the hub has them, read by `datasets`, judged by the notebook."""
import json, os, subprocess, sys
from functools import partial
from pathlib import Path
import pandas as pd
import pytest
from conftest import ROOT, run_cells
from splade_nb.data.records import DataError, toy_corpus
from splade_nb.config.files import ConfigError, read_json
from splade_nb.data.corpus import STANDARD, of_collection, open_corpus
from splade_nb.data.readers import load
from splade_nb.lab.benchmark import evaluate_all, gather
from splade_nb.evaluation.compare import comparable, compare_row, one_group
from splade_nb.evaluation.metrics import marked, paired_difference
from splade_nb.evaluation.report import RunError, against_bm25
from splade_nb.evaluation.retrieval import evaluate_model
from splade_nb.lab.systems import model_key
from splade_nb.model.load import load_encoder

pytestmark = pytest.mark.slow  # of the laboratory: `make test` is the core's

MINI = load('mini')
DOCUMENTS = [{'_id': document.id, 'title': document.title, 'text': document.text} for document in MINI.documents.values()][:300]
HELD = {row['_id'] for row in DOCUMENTS}
JUDGED = {query: grades for query, grades in MINI.qrels.items() if grades.keys() <= HELD}
TEST, DEV, TRAIN = ([query for query in JUDGED][start::40] for start in range(3))
# What the hub's cards say: {configuration: {split: file}}, in the order and the formats of each repository.
LAYOUTS = {
    'mteb/Ko-StrategyQA': {table: {'dev': f'{table}/dev-00000-of-00001.parquet'} for table in ('corpus', 'qrels', 'queries')},
    'taeminlee/Ko-miracl': {'default': {split: f'qrels/{split}.jsonl' for split in ('train', 'dev')}, 'corpus': {'corpus': 'corpus.jsonl'}, 'queries': {'queries': 'queries.jsonl'}},
    'taeminlee/Ko-mrtydi': {'default': {split: f'qrels/{split}.jsonl' for split in ('train', 'dev', 'test')}, 'corpus': {'corpus': 'corpus.jsonl'}, 'queries': {'queries': 'queries.jsonl'}},
    'mteb/MIRACLRetrieval': {f'{language}-{table}': {'dev': f'{language}-{table}/dev-00000-of-00001.parquet'} for language in ('ja', 'ko') for table in ('corpus', 'queries', 'qrels')},
    'mteb/mrtidy': {f'{language}-{table}': {split: f'{language}-{table}/{split}.jsonl'} for language in ('japanese', 'korean') for table, split in (('corpus', 'train'), ('queries', 'test'), ('qrels', 'test'))}}


def rows_of(configuration: str, split: str, score=float) -> list:
    "The rows of a table; of another language, one that must not be read."
    if configuration.startswith('ja'): return [{'_id': 'x', 'title': '', 'text': '日本', 'query-id': 'x', 'corpus-id': 'x', 'score': score(1)}]
    if configuration.endswith('corpus'): return DOCUMENTS
    if configuration.endswith('queries'): return [{'_id': query, 'text': MINI.queries[query].text} for query in (*TEST, *DEV, *TRAIN)]
    found = [(query, document, 1) for query in {'test': TEST, 'dev': DEV, 'train': TRAIN}[split] for document in JUDGED[query]]
    refused = [(query, next(iter(JUDGED[other])), 0) for query, other in zip(DEV, DEV[1:]) if split == 'dev' and not JUDGED[query].keys() & JUDGED[other].keys()]
    return [{'query-id': query, 'corpus-id': document, 'score': score(value)} for query, document, value in (*found, *refused)]


def stand_in(folder: Path, name: str) -> Path:
    "A snapshot of a hub repository with its card."
    from datasets import Dataset
    card = '---\nconfigs:\n'
    for configuration, splits in LAYOUTS[name].items():
        card += f'- config_name: {configuration}\n  data_files:\n'
        for split, file in splits.items():
            card += f'  - split: {split}\n    path: {file}\n'
            path = folder/name/file; path.parent.mkdir(parents=True, exist_ok=True)
            rows = Dataset.from_list(rows_of(configuration, split, int if file.endswith('parquet') else float))
            (rows.to_parquet if file.endswith('parquet') else partial(rows.to_json, force_ascii=False))(path)
    (folder/name/'README.md').write_text(card + '---\n', encoding='utf-8')
    return folder/name


@pytest.fixture(scope='module')
def stand_ins(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp('hub')
    return {name: stand_in(folder, name) for name in LAYOUTS}


@pytest.fixture
def hub(stand_ins, monkeypatch, tmp_path):
    "The hub holds the stand-ins and nothing else."
    import datasets
    names, tables = datasets.get_dataset_config_names, datasets.load_dataset
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path/'cache')
    def at(name):
        if name not in stand_ins: raise ConnectionError(f"Couldn't reach {name!r} on the Hub")
        return str(stand_ins[name])
    monkeypatch.setattr(datasets, 'get_dataset_config_names', lambda name: names(at(name)))
    monkeypatch.setattr(datasets, 'load_dataset', lambda name, configuration: tables(at(name), configuration))


@pytest.mark.parametrize('source, split, asked', [('ko_strategyqa', 'dev', DEV), ('miracl_ko', 'dev', DEV), ('mrtydi_ko', 'test', TEST), ('mteb/MIRACLRetrieval', 'dev', DEV), ('mteb/mrtidy', 'test', TEST)])
def test_each_schema_is_read(source, split, asked, hub):
    corpus = open_corpus(source)
    assert (corpus.split, corpus.ids, sorted(corpus.queries)) == (split, [row['_id'] for row in DOCUMENTS], sorted(asked))
    assert list(corpus.values()) == [MINI.documents[id].full for id in corpus.ids] and corpus[corpus.ids[7]] == MINI.documents[corpus.ids[7]].full
    assert corpus.qrels == {row['query-id']: corpus.qrels[row['query-id']] for row in rows_of('qrels', split)} and all(corpus.qrels[row['query-id']][row['corpus-id']] == row['score'] for row in rows_of('qrels', split))
    if source in STANDARD: assert f'not the public {STANDARD[source].title}: 300 documents' in corpus.notes[-1]


def test_the_subsample_holds_every_judgment_and_stays(hub):
    whole, drawn, again = open_corpus('miracl_ko'), open_corpus('miracl_ko', 120), open_corpus('miracl_ko', 120)
    judged = {document for grades in whole.qrels.values() for document in grades}
    assert 0 in {grade for grades in whole.qrels.values() for grade in grades.values()} and judged <= set(drawn) and len(drawn) == 120 and drawn.qrels == whole.qrels
    assert drawn.ids == again.ids and drawn.hash == again.hash != whole.hash and drawn.label == 'miracl_ko-120' and 'not comparable with the whole' in ' '.join(drawn.notes)
    assert all(drawn[id] == whole[id] for id in drawn)


def test_what_is_broken_is_named(stand_ins, tmp_path):
    import shutil
    folder = tmp_path/'Ko-miracl'; shutil.copytree(stand_ins['taeminlee/Ko-miracl'], folder)
    with (folder/'corpus.jsonl').open('a', encoding='utf-8') as file: file.write(json.dumps(DOCUMENTS[0], ensure_ascii=False) + '\n')
    with pytest.raises(DataError, match='1 ids a second time'): open_corpus(f'miracl_ko={folder}')
    assert len(open_corpus(f'miracl_ko={stand_ins["taeminlee/Ko-miracl"]}')) == len(DOCUMENTS), 'a folder of the same name keeps its own rows'


# ---- the notebook

@pytest.fixture(scope='module')
def model(tmp_path_factory) -> Path:
    "A small model from its start, as a run folder keeps it."
    from splade_nb.config.versions import resolve
    from splade_nb.training.dataset import save_model_folder
    from splade_nb.experiment import prepare
    folder = tmp_path_factory.mktemp('runs')/'v28'
    save_model_folder(prepare(resolve('v28', hidden=64, layers=1, vocabulary=400), toy_corpus(), 42), folder)
    return folder


def papermill(folder: Path, **parameters) -> subprocess.CompletedProcess:
    given = [part for name, value in parameters.items() for part in ('-p', name, str(value))]
    return subprocess.run([Path(sys.executable).parent/'papermill', 'nbs/evaluate_full.ipynb', str(folder/'evaluate_full.ipynb'), *given], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {'HF_HOME': str(folder/'hf'), 'HF_HUB_OFFLINE': '1'})


def test_the_notebook_judges_all_three(stand_ins, model, tmp_path):
    named = ','.join(f'{name}={stand_ins[known.source]}' for name, known in STANDARD.items())
    given = dict(model=model, collections=named, sample=150, dense='lsa', out=tmp_path/'full')
    done = papermill(tmp_path, **given)
    assert done.returncode == 0, done.stderr[-2000:]
    files = sorted((tmp_path/'full').glob('*/*.json'))
    assert [path.relative_to(tmp_path/'full').as_posix() for path in files] == [f'{name}-150/{system}.json' for name in STANDARD for system in ('bm25', 'bm25_bigrams', 'lsa', 'v28')]
    results = [json.loads(path.read_text(encoding='utf-8')) for path in files]
    assert all(result['documents'] == 150 and not result['as_published'] and {'mean', 'low', 'high'} == set(result['metrics']['ndcg@10']) for result in results)
    assert all(result['metrics']['ndcg@10']['mean'] > 0.3 for result in results if result['system'] in ('bm25', 'bm25_bigrams'))
    shown = json.loads((tmp_path/'evaluate_full.ipynb').read_text(encoding='utf-8'))
    page = json.dumps([cell['outputs'] for cell in shown['cells'] if cell['cell_type'] == 'code'], ensure_ascii=False)
    assert 'not comparable with the whole collection' in page and 'nDCG@10 over BM25' in page and 'MIRACL-ko, 10,000 documents, published' in page
    assert f'make evaluate-full MODEL={model} COLLECTIONS=' in page and 'SAMPLE=150 DENSE=lsa`' in page and page.count('data as published') == 1
    stamps = [path.stat().st_mtime_ns for path in files]
    files[1].unlink()
    evaluate_all(*gather(str(model), named, 150, 'lsa'), tmp_path/'full')
    assert [path.stat().st_mtime_ns == stamp for path, stamp in zip(files, stamps)] == [place != 1 for place in range(12)], 'only what is missing is computed'


def test_without_the_hub_everything_that_is_missing_is_named_at_once(tmp_path):
    done = papermill(tmp_path, model=tmp_path/'no-run', out=tmp_path/'full')
    assert done.returncode == 1 and '5 cannot be had' in done.stderr and not (tmp_path/'full').exists()
    assert all(f'hf download {name}' in done.stderr for name in (*(known.source for known in STANDARD.values()), 'BAAI/bge-m3')) and 'no-run is no saved model' in done.stderr


def test_the_words_of_another_corpus_are_not_ranked_by():
    "Where a result of the first corpus was there already, its words stood for those of the next corpus with the same ids."
    from splade_nb.lab.systems import bm25_systems
    words, both = bm25_systems()
    words.index({'d0': '사과 나무', 'd1': '배 나무'}, None)
    texts = {'d0': '바다 물결', 'd1': '산 바람'}
    assert both.index(texts, None).run({'q': '바다'}) == bm25_systems()[1].index(texts, None).run({'q': '바다'})


def test_a_misspelt_parameter_stops_it():
    with pytest.raises(ConfigError, match="did you mean 'collections'"):
        run_cells('evaluate_full.ipynb', colections='mini')


# ---- work that was cut off

def test_a_cut_off_evaluation_goes_on_at_its_first_missing_shard(model, tmp_path, monkeypatch):
    from splade_nb.model import encode_shards as encoding
    from splade_nb.lab import benchmark
    from splade_nb.lab import systems
    corpus, system = of_collection(toy_corpus()), systems.model_system(str(model))
    whole = benchmark.evaluate_system(system, corpus, tmp_path/'whole')
    monkeypatch.setattr(systems, 'encode_shards', partial(encoding.encode_shards, size=3))
    written, write = [], encoding.write_shard
    def failing(path, rows):
        if len(written) == 2: written.append('cut'); raise OSError('power cut')
        written.append(path.name); write(path, rows)
    monkeypatch.setattr(encoding, 'write_shard', failing)
    with pytest.raises(OSError): benchmark.evaluate_system(system, corpus, tmp_path/'parts')
    found = benchmark.evaluate_system(system, corpus, tmp_path/'parts')
    assert written == ['shard-000000.npz', 'shard-000001.npz', 'cut', 'shard-000002.npz', 'shard-000003.npz', 'shard-000004.npz']
    assert {name: value for name, value in found.items() if name in ('metrics', 'per_query', 'active_terms')} == {name: whole[name] for name in ('metrics', 'per_query', 'active_terms')}
    assert not list((tmp_path/'parts'/'work').iterdir()), 'shards go once their result is written'


def test_a_local_encoder_in_shards_ranks_as_in_one_piece(tmp_path):
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaModel
    from splade_nb.lab import systems
    from splade_nb.training.teacher import sentence_encoder
    from splade_nb.evaluation.metrics import rank
    from splade_nb.data.tokenizer import train_unigram
    torch.manual_seed(0)
    tokenizer = train_unigram(list(toy_corpus().texts.values()), 300); tokenizer.save_pretrained(tmp_path/'BGE-tiny')
    XLMRobertaModel(XLMRobertaConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=66,
                                     pad_token_id=tokenizer.pad_token_id), add_pooling_layer=False).save_pretrained(tmp_path/'BGE-tiny')
    corpus, system = of_collection(toy_corpus()), systems.pretrained_system(str(tmp_path/'BGE-tiny'))
    systems.shards, before = partial(systems.shards, size=4), systems.shards
    try: run = system.index(corpus, tmp_path).run(corpus.queries)
    finally: systems.shards = before
    encode = sentence_encoder(str(tmp_path/'BGE-tiny'))
    whole = rank(encode(list(corpus.queries.values())) @ encode(list(corpus.values())).T, list(corpus.queries), corpus.ids)
    overlap = [len(set(list(run[query])[:10]) & set(list(whole[query])[:10])) for query in corpus.queries]
    assert system.name == 'bge-tiny' and min(overlap) >= 9, 'batches differ in padding, so the last digit may'
    with pytest.raises(ConfigError, match='at most 100,000'): systems.pretrained_system('lsa').index([None] * 100_001, tmp_path)


def test_the_study_takes_only_the_public_collections(tmp_path, capsys):
    from splade_nb.lab import benchmark
    from splade_nb.evaluation.compare import percent
    result = benchmark.evaluate_system(benchmark.bm25_systems()[0], of_collection(toy_corpus()), tmp_path/'full')
    def shown():
        study = run_cells('studies/full_scale.ipynb', results=str(tmp_path/'kept'))
        return study['keep'], study['markdown_table'](study['published_table'](study['published'], study['measured']))
    keep, table = shown()
    keep(result)
    assert 'no public collection' in capsys.readouterr().out and not (tmp_path/'kept').exists()
    assert '| BM25 (Nori there, Kiwi here) | 53.7 |  |' in table
    keep(result | dict(as_published=True, collection='ko_strategyqa'))
    assert f'| BM25 (Nori there, Kiwi here) | 53.7 | {percent(result["metrics"]["success@1"])} |' in shown()[1]


def test_a_corpus_of_other_texts_of_the_same_size_has_another_hash(tmp_path):
    first, second = (stand_in(tmp_path/name, 'taeminlee/Ko-miracl') for name in 'ab')
    swapped = [DOCUMENTS[1] | {'_id': DOCUMENTS[0]['_id']}, DOCUMENTS[0] | {'_id': DOCUMENTS[1]['_id']}, *DOCUMENTS[2:]]
    (second/'corpus.jsonl').write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in swapped), encoding='utf-8')
    assert len({open_corpus(str(folder)).hash for folder in (first, second)}) == 2


def test_results_of_a_model_follow_from_how_it_reads_texts(model):
    model, tokenizer = load_encoder(str(model))
    before = model_key(model, tokenizer)
    tokenizer.segment = 'none'
    assert model_key(model, tokenizer) != before


def test_runs_that_searched_different_documents_stand_apart():
    summary = read_json(ROOT/'docs'/'results'/'v28-corrected-mini-42'/'summary.json')
    table = pd.DataFrame([compare_row(summary), compare_row(summary | dict(version='v27', documents=100))])
    assert [len(group) for group in comparable(table)] == [1, 1]
    with pytest.raises(RunError, match='100 documents'): one_group(table)


def test_one_query_is_no_difference_beyond_chance():
    difference = paired_difference([0.9], [0.1])
    assert difference['p'] == 1 and marked([difference]) == marked([difference | dict(p=None)]) == ['≈'] and 'one query' in against_bm25(difference)


def test_a_split_that_is_not_evaluated_is_refused():
    with pytest.raises(ConfigError, match="unknown split 'dev'"): evaluate_model('', 'toy', 'dev')
