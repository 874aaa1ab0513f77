"""The Korean board through mteb: the same numbers as `make evaluate`, data without the hub, what is kept and what is refused."""
import json
from pathlib import Path
import pytest
from conftest import ROOT, real, run_cells
from splade_nb.config.files import ConfigError, read_json, write_json
from splade_nb.config.versions import resolve
from splade_nb.data.readers import load, load_collection
from splade_nb.data.records import DataError, toy_corpus
from splade_nb.lab import board
from splade_nb.evaluation.retrieval import evaluate_queries
from splade_nb.experiment import prepare
from splade_nb.training.dataset import save_model_folder

pytestmark = pytest.mark.slow  # of the laboratory: `make test` is the core's


def saved(folder: Path, version: str = 'v29', **changes) -> str:
    "A small model from its start, as a run folder keeps it."
    return str(save_model_folder(prepare(resolve(version, hidden=64, layers=1, vocabulary=400, **changes), toy_corpus(), 42), folder))


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> str: return saved(tmp_path_factory.mktemp('runs')/'ko')


@pytest.fixture(scope='module')
def model(folder): return board.SearchModel(folder)


@pytest.fixture(scope='module')
def toy_result(model, tmp_path_factory):
    out = tmp_path_factory.mktemp('board')
    return out, board.evaluate_task(model, board.collection_task(toy_corpus()), out)


@pytest.fixture(scope='module', autouse=True)
def with_mteb():
    "It takes seconds to import, which a worker that runs other files need not wait for."
    global mteb
    mteb = pytest.importorskip('mteb', reason="mteb is not installed: pip install 'splade_nb[board]'")


def judged(model, collection, ids) -> dict:
    "What `make evaluate` computes."
    return evaluate_queries(model.model, model.tokenizer, collection, list(ids), k=1000)


def assert_equal(result, whole: dict, documents: int) -> None:
    part, = board.korean_parts(result)
    for name, ours in (('ndcg_at_10', 'ndcg@10'), ('recall_at_1', 'recall@1'), ('recall_at_10', 'recall@10'), ('mrr_at_10', 'mrr@10'), ('hit_rate_at_1', 'success@1'), ('recall_at_1000', 'recall@1000')):
        assert part[name] == pytest.approx(whole['metrics'][ours], abs=1e-4), name
    assert part['active_terms_per_document'] == pytest.approx(whole['active_terms']['doc'], abs=0.01)
    assert part['active_terms_per_query'] == pytest.approx(whole['active_terms']['query'], abs=0.01)
    assert part['num_documents'] == documents and part['index_bytes'] == pytest.approx(8 * documents * whole['active_terms']['doc'], rel=1e-3)


# ---- the same numbers

def test_mteb_gives_the_numbers_of_make_evaluate(model, toy_result):
    toy, (_, result) = toy_corpus(), toy_result
    assert_equal(result, judged(model, toy, toy.split('test')), len(toy.documents))


def test_equal_scores_keep_the_order_of_this_package(model, tmp_path, monkeypatch):
    "All documents have the same score, and the relevant one has the id that trec_eval would put first."
    from splade_nb.evaluation.metrics import tie_key
    from splade_nb.data.records import Document, Query, collect
    ids = [f'd{place:02}' for place in range(30)]
    relevant = max(ids)
    assert sorted(ids, key=tie_key).index(relevant) > 0
    same = collect('same', {id: Document(id, '', '경복궁 쉬는 날') for id in ids}, {'q': Query('q', '경복궁 쉬는 날', split='test')}, {'q': {relevant: 1}})
    result, whole = board.evaluate_task(model, board.collection_task(same, 'all'), tmp_path), judged(model, same, ['q'])
    assert_equal(result, whole, 30)
    monkeypatch.setattr(board, 'strictly_falling', lambda best: None)
    assert board.evaluate_task(model, board.collection_task(same, 'all'), tmp_path/'by-id').get_score() == 1 > result.get_score()


def test_a_query_that_finds_nothing_counts_zero(model, toy_result, tmp_path, monkeypatch):
    searched = board._searched
    def without_the_first(model, tokenizer, corpus, search):
        cost = searched(model, tokenizer, corpus, search)
        search.best.rows[0], search.best.scores[0] = -1, 0
        return cost
    monkeypatch.setattr(board, '_searched', without_the_first)
    found, toy = board.evaluate_task(model, board.collection_task(toy_corpus()), tmp_path), toy_corpus()
    values = judged(model, toy, toy.split('test'))['per_query']['ndcg@10']
    assert values.iloc[0] > 0 and found.get_score() == pytest.approx(values.iloc[1:].sum() / len(values), abs=1e-4) and found.get_score() < toy_result[1].get_score()


def test_the_export_for_sentence_transformers_scores_alike_in_mteb_s_own_wrapper(tmp_path):
    pytest.importorskip('sentence_transformers')
    from sentence_transformers import SparseEncoder
    from splade_nb.hub.export import write_form
    plain = board.SearchModel(saved(tmp_path/'v28', 'v28', decoder_bias_offset=0.0))  # every document scores: mteb ranks zeros too
    limits = write_form(plain.model, plain.tokenizer, 'sentence-transformers', tmp_path/'exported', lambda limits, there: '')
    task = board.collection_task(toy_corpus(), 'all')
    ours = board.evaluate_task(plain, task, tmp_path/'board')
    theirs = mteb.evaluate(SparseEncoder(str(tmp_path/'exported'), trust_remote_code=True), task, cache=None, co2_tracker=False, show_progress_bar=False).task_results[0]
    assert ours.get_score() == pytest.approx(theirs.get_score(), abs=1e-4), limits
    again = board.evaluate_task(board.SearchModel(str(tmp_path/'exported')), task, tmp_path/'again')
    assert again.get_score() == pytest.approx(ours.get_score(), abs=1e-4)


def test_korquad_is_judged_by_mteb_as_by_make_evaluate(model, tmp_path):
    "On its first articles: the whole of it is counted below."
    (tmp_path/'korquad_v1').mkdir()
    found = read_json(real('data/korquad_v1')/'KorQuAD_v1.0_dev.json')
    write_json(tmp_path/'korquad_v1'/'KorQuAD_v1.0_dev.json', found | dict(data=found['data'][:20]))
    collection = load_collection(str(tmp_path/'korquad_v1'))
    task, = board.open_tasks(str(tmp_path/'korquad_v1'), 'all')
    result, whole = board.evaluate_task(model, task, tmp_path), judged(model, collection, collection.qrels)
    assert_equal(result, whole, len(collection.documents))
    part, = board.korean_parts(result)
    assert part['num_queries'] == len(collection.qrels) > 500 and 0.05 < part['ndcg_at_10'] < 1


def test_the_board_s_copy_of_korquad_lacks_the_one_paragraph_without_a_question():
    "By the statistics that mteb ships: what remains has the same number of texts and of characters, the same shortest and longest."
    collection = load(real('data/korquad_v1'))
    asked = {document for grades in collection.qrels.values() for document in grades}
    alone = [one for id, one in collection.documents.items() if id not in asked]
    told = board.board_tasks()['SQuADKorV1Retrieval'].metadata.descriptive_stats['test']
    assert (len(collection.documents), told['num_documents'], len(alone)) == (961, 960, 1)
    documents, questions = ([*map(len, texts)] for texts in ((collection.texts[id] for id in asked), (query.text.strip() for query in collection.queries.values())))
    for lengths, name in ((documents, 'documents'), (questions, 'queries')):
        known = told[f'{name}_text_statistics']
        assert (sum(lengths), min(lengths), max(lengths)) == (known['total_text_length'], known['min_text_length'], known['max_text_length']), name
    assert len(questions) == told['num_queries'] == 5774


# ---- what mteb keeps

def test_the_results_are_in_mteb_s_own_form(model, toy_result):
    out, result = toy_result
    path = board.result_path(model, board.collection_task(toy_corpus()), out)
    assert path == out/'results'/'splade_nb__ko'/model.mteb_model_meta.revision/'toy.json' and {one.name for one in path.parent.iterdir()} == {'toy.json', 'model_meta.json'}
    assert mteb.results.TaskResult.from_disk(path).get_score() == result.get_score()
    read = mteb.ResultCache(out).load_results(models=['splade_nb/ko'], tasks=['toy'], require_model_meta=False, validate_and_filter=False)
    assert [each.task_name for one in read.model_results for each in one.task_results] == ['toy']
    assert read_json(path.parent/'model_meta.json')['model_type'] == ['sparse']


def test_another_model_or_other_data_is_another_result(model, toy_result, tmp_path, monkeypatch):
    out, _ = toy_result
    other = board.SearchModel(saved(tmp_path/'ko', max_length=32))
    assert other.name == model.name and other.mteb_model_meta.revision != model.mteb_model_meta.revision, 'settings count, not weights alone'
    searched = []
    search = board.SearchModel.search
    monkeypatch.setattr(board.SearchModel, 'search', lambda self, *args, **about: searched.append(self) or search(self, *args, **about))
    board.evaluate_task(model, board.collection_task(toy_corpus()), out)
    assert searched == [], 'stored'
    everything = board.evaluate_task(model, board.collection_task(toy_corpus(), 'all'), out)
    assert len(searched) == 1 and board.korean_parts(everything)[0]['num_queries'] == len(toy_corpus().qrels), 'the split counts'
    board.evaluate_task(model, board.collection_task(toy_corpus()), out)
    assert len(searched) == 2, 'one file holds the last'


def test_a_failure_leaves_the_stored_result_and_nothing_half_written(model, tmp_path, monkeypatch):
    task = board.collection_task(toy_corpus())
    board.evaluate_task(model, task, tmp_path)
    path = board.result_path(model, task, tmp_path)
    before = path.read_bytes()
    def broken(self, place):
        Path(place).write_text('{"half', encoding='utf-8')
        raise OSError('disk full')
    monkeypatch.setattr(mteb.results.TaskResult, 'to_disk', broken)
    with pytest.raises(OSError): board.evaluate_task(model, board.collection_task(toy_corpus(), 'all'), tmp_path)
    assert path.read_bytes() == before and sorted(one.name for one in path.parent.iterdir()) == ['model_meta.json', 'toy.json']


# ---- data without the hub

KOREAN = [{'_id': id, 'title': one.title, 'text': one.text} for id, one in toy_corpus().documents.items()]
ASKED = list(toy_corpus().split('test'))
ROWS = {'corpus': KOREAN, 'queries': [{'_id': id, 'text': toy_corpus().queries[id].text} for id in ASKED],
        'qrels': [{'query-id': id, 'corpus-id': document, 'score': 1} for id in ASKED for document in toy_corpus().qrels[id]]}
FLAT = {'link': [one['_id'] for one in KOREAN], 'text': KOREAN}
LAYOUTS = {  # name of a task: configuration: split of its file; as mteb's own code asks for them
    'SQuADKorV1Retrieval': dict(corpus='test', queries='test', default='test'),
    'Ko-StrategyQA': dict(corpus='dev', queries='dev', default='dev'),
    'MIRACLRetrieval': {'ko-corpus': 'dev', 'ko-queries': 'dev', 'ko-qrels': 'dev'},
    'MrTidyRetrieval': {'korean-corpus': 'train', 'korean-queries': 'test', 'korean-qrels': 'test'},
    'PublicHealthQA': dict(korean='test'), 'BelebeleRetrieval': dict(kor_Hang='test', eng_Latn='test')}


def rows_of(configuration: str) -> list:
    found = {query: document for query, document in ((id, next(iter(toy_corpus().qrels[id]))) for id in ASKED)}
    texts = {row['_id']: f'{row["title"]} {row["text"]}' for row in KOREAN}
    if configuration == 'korean': return [dict(question=toy_corpus().queries[id].text, answer=texts[document]) for id, document in found.items()]
    if configuration in ('kor_Hang', 'eng_Latn'):
        return [dict(link=document, flores_passage=texts[document], question=toy_corpus().queries[id].text) for id, document in found.items()]
    return ROWS[configuration.split('-')[-1].replace('default', 'qrels')]


def snapshot(folder: Path, name: str) -> Path:
    card = '---\nconfigs:\n'
    folder.mkdir(parents=True)
    for configuration, split in LAYOUTS[name].items():
        card += f'- config_name: {configuration}\n  data_files:\n  - split: {split}\n    path: {configuration}.jsonl\n'
        (folder/f'{configuration}.jsonl').write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows_of(configuration)), encoding='utf-8')
    (folder/'README.md').write_text(card + '---\n', encoding='utf-8')
    return folder


@pytest.fixture(autouse=True)
def no_hub(monkeypatch, tmp_path_factory):
    import datasets, huggingface_hub
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path_factory.getbasetemp()/'datasets')
    monkeypatch.setattr(datasets.config, 'HF_HUB_OFFLINE', True)
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', True)


@pytest.mark.parametrize('name', LAYOUTS)
def test_a_downloaded_data_set_is_read_by_mteb_s_own_code(name, model, tmp_path):
    task, = board.open_tasks(f'{name}={snapshot(tmp_path/"data", name)}')
    result = board.evaluate_task(model, task, tmp_path/'board')
    parts = board.korean_parts(result)
    assert [part['num_queries'] for part in parts] == [len(ASKED)] and parts[0]['ndcg_at_10'] > 0.3 and result.dataset_revision.startswith('snapshot-')
    assert board.board_tasks()[name].metadata.dataset['path'].count('/') == 1 and not board.board_tasks()[name].data_loaded, 'the registry of mteb is as before'
    assert (len(result.scores['test']) == 3 and result.scores['test'][0]['hf_subset'] == 'kor_Hang-kor_Hang') if name == 'BelebeleRetrieval' else True
    if board.published_size(task, parts[0]['hf_subset'], parts[0]['split']): assert 'on the board' in board.task_table([result])['documents / queries'][0]


def test_two_downloads_of_one_name_keep_their_own_rows(model, tmp_path):
    one, other = (snapshot(tmp_path/place/'data', 'SQuADKorV1Retrieval') for place in ('one', 'other'))
    (other/'corpus.jsonl').write_text('\n'.join((other/'corpus.jsonl').read_text(encoding='utf-8').splitlines()[:-3]), encoding='utf-8')
    sizes = []
    for place in (one, other):
        task, = board.open_tasks(f'SQuADKorV1Retrieval={place}')
        task.load_data()
        sizes.append(len(task.dataset['default']['test']['corpus']))
    assert sizes == [len(KOREAN), len(KOREAN) - 3]


def test_all_that_is_missing_is_named_at_once(tmp_path):
    with pytest.raises(ConfigError) as error: board.open_tasks()
    assert str(error.value).startswith('9 cannot be evaluated') and all(f'hf download {task.metadata.dataset["path"]} ' in str(error.value) for task in board.board_tasks().values())
    with pytest.raises(ConfigError, match="2 cannot be evaluated(.|\n)*did you mean 'MrTidyRetrieval'(.|\n)*no folder with files"):
        board.open_tasks(f'MrTidyRetrievel, LawIRKo={tmp_path/"nowhere"}')
    with pytest.raises(ConfigError, match='toy: given twice'): board.open_tasks('toy,toy')
    with pytest.raises(ConfigError, match="unknown split 'dev'"): board.open_tasks('toy', 'dev')
    (tmp_path/'no-set').mkdir()
    (tmp_path/'no-set'/'note.txt').write_text('빈 폴더', encoding='utf-8')
    task, = board.open_tasks(f'SQuADKorV1Retrieval={tmp_path/"no-set"}')
    with pytest.raises(ValueError): task.load_data()


def test_a_document_given_twice_is_refused(model):
    from datasets import Dataset
    model.index(Dataset.from_list([dict(id='d', title='', text='눈'), dict(id='d', title='', text='비')]))
    with pytest.raises(DataError, match='1 a second time'): model.search(Dataset.from_list([dict(id='q', text='눈')]), top_k=1)


def test_without_mteb_the_extra_is_named(monkeypatch):
    import sys
    monkeypatch.setitem(sys.modules, 'mteb', None)
    with pytest.raises(ConfigError, match=r"mteb is not installed: pip install 'splade_nb\[board\]'"): board.board_tasks()


# ---- published systems, and the notebook

def test_each_published_row_says_where_it_is_from():
    published = read_json(ROOT/'docs/results/board/published.json')
    names = list(board.board_tasks())
    for told in published.values():
        assert set(told) == {'metric', 'about', 'rows'}
        for row in told['rows']:
            assert row['source'] and row['date'] > '2026' and row['overlap'] and 0 < row['score'] < 1 and set(row['trained_on'] or []) <= set(names)
    if mteb.__version__ != '2.26.24': pytest.skip('the rows quote the registry of mteb 2.26.24')
    for row in (row for told in published.values() for row in told['rows'] if row['overlap'].startswith('registry')):
        meta = mteb.get_model_meta(row['system'])
        trained = meta.get_training_datasets()
        assert (row['parameters'], [row['kind']], row['trained_on']) == (meta.n_parameters, meta.model_type, None if trained is None else [name for name in names if name in trained]), row['system']


def test_the_notebook_shows_this_model_beside_published_ones(folder, tmp_path, capsys):
    named = f'SQuADKorV1Retrieval={snapshot(tmp_path/"data", "SQuADKorV1Retrieval")},toy'
    shown = run_cells('evaluate.ipynb', model=folder, tasks=named, split='all', out=str(tmp_path/'board'))
    assert [result.task_name for result in shown['results']] == ['SQuADKorV1Retrieval', 'toy'] and shown['ours']['measured'] == '1 of 9 tasks' and shown['ours']['score'] is None
    assert board.korean_parts(shown['results'][1])[0]['num_queries'] == len(toy_corpus().qrels), 'split=all'
    said = capsys.readouterr().out
    told = json.loads(said[said.rindex('[\n'):])
    assert [row['task'] for row in told] == ['SQuADKorV1Retrieval', 'toy'] and all(Path(row['result']).is_relative_to(tmp_path/'board') and read_json(row['result']) for row in told)


def test_a_misspelt_parameter_stops_it():
    with pytest.raises(ConfigError, match="did you mean 'tasks'"): run_cells('evaluate.ipynb', taskz='toy')


def test_the_notebook_declares_what_is_checked():
    import sys
    sys.path.insert(0, str(ROOT/'docs'))
    from run_notebook import defaults
    assert tuple(defaults('evaluate')) == board.PARAMETERS
