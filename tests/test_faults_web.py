"""Server addresses and their passwords, addresses to listen on, connections and requests that cost too much, terminals."""
import base64, json, os, re, shutil, socket, subprocess, threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote
import pytest
from chromium import HANGS, until
from conftest import ROOT
from fastapi.testclient import TestClient
from scipy import sparse
from splade_nb.cli import parser
from splade_nb.config.command_line import exit_codes, printable
from splade_nb.config.files import ConfigError
from splade_nb.hub.server_limits import SIDES
from splade_nb.serving import connector, embedded_engines, engines, opensearch, web
from splade_nb.serving.network import ServerAddress, read_address, served_names, without_password
from splade_nb.serving.searcher import Hit, Term, check_address, print_hits

# Passwords

SECRETS = {'plain': ('bibimbap', 'bibimbap'), 'slash': ('bibim/bap', 'bibim/bap'), 'at': ('bibim@bap', 'bibim@bap'), 'escaped': ('bibim%2Fb%40p', 'bibim/b@p'),
           'colon': ('bibim:bap', 'bibim:bap'), 'marks': ('bibim?b#p', 'bibim?b#p'), 'percent': ('bibim%25bap', 'bibim%bap'), 'line': ('bibim\nbap', 'bibim\nbap')}


def milvus_secret(address, monkeypatch) -> str:
    given = []
    monkeypatch.setattr(embedded_engines, '_milvus_client', lambda server, secret: given.append((server, secret)) or SimpleNamespace())
    embedded_engines.MilvusBackend(None, read_address(address))
    (server, secret), = given
    assert server == 'https://localhost:9200'
    return secret.removeprefix('admin:')


def qdrant_secret(address, monkeypatch) -> str:
    given = {}
    package = SimpleNamespace(models=SimpleNamespace(PointStruct=None), QdrantClient=lambda **options: given.update(options))
    monkeypatch.setattr(embedded_engines, 'needs', lambda *_, **__: package)
    embedded_engines._QdrantServerBackend(read_address(address))
    assert given['url'] == 'https://localhost:9200'
    return given['api_key']


def opensearch_secret(address, monkeypatch) -> str:
    options = opensearch.client_options(address)[2]
    assert (options['hosts'][0]['host'], options['hosts'][0]['port']) == ('localhost', 9200)
    return base64.b64decode(options['headers']['authorization'].removeprefix('Basic ')).decode().removeprefix('admin:')


@pytest.mark.parametrize('read', [milvus_secret, qdrant_secret, opensearch_secret])
@pytest.mark.parametrize('typed, password', SECRETS.values(), ids=SECRETS)
def test_every_server_reads_the_same_password(typed, password, read, monkeypatch):
    assert read(f'https://admin:{typed}@localhost:9200/docs', monkeypatch) == password


@pytest.mark.parametrize('typed', [typed for typed, _ in SECRETS.values()], ids=SECRETS)
def test_no_password_is_shown(typed):
    address = f'https://admin:{typed}@localhost:9200/docs'
    found = read_address(address)
    shown = [str(found), repr(found), without_password(address), without_password('qdrant+' + address), without_password(f'admin:{typed}@host/docs')]
    for call in (lambda: read_address(f'https://admin:{typed}@localhost'), lambda: read_address(f'https://admin:{typed}@host/a,b'),
                 lambda: read_address(f'https://admin:{typed}@[::1]:99999/docs'), lambda: opensearch.client_options(f'https://admin:{typed}@host/Docs'),
                 lambda: engines.open_index(f'{address}'), lambda: engines.new_index('qdrant', 'milvus+' + address, None),
                 lambda: check_address('exact', address), lambda: check_address('qdrant', 'milvus+' + address), lambda: check_address('qdrant', f'admin:{typed}@host/docs'),
                 lambda: check_address('qdrant', f'https://admin:{typed.partition("@")[0]}/docs')):
        with pytest.raises(ConfigError) as error: call()
        shown.append(str(error.value))
    assert not [line for line in shown if 'bibim' in line or 'b@p' in line]
    assert without_password(address) == str(found) == 'https://localhost:9200/docs'


@pytest.mark.parametrize('address, parts', {
    'http://localhost:9200/docs': ('http', 'localhost', 9200, '', 'docs', '', ''), 'https://[::1]/team/문서/': ('https', '[::1]', None, '/team', '문서', '', ''),
    'milvus+http://열쇠@host/%EB%AC%B8': ('http', 'host', None, '', '문', '열쇠', '')}.items())
def test_an_address_keeps_its_parts(address, parts): assert read_address(address) == ServerAddress(address.partition('+')[0] if '+' in address else '', *parts)


@pytest.mark.parametrize('engine, place, said', [
    ('postgres', 'postgresql:///db/t', 'postgresql://host/database/my_texts'), ('postgres', 'postgresql://host:99999/db/t', 'postgresql://host/database/my_texts'),
    ('postgres', 'postgresql://host//t', 'postgresql://host/database/my_texts'), ('opensearch', 'http://host', 'https://host:9200/my-index'),
    ('postgres', 'http://host/t', "found http://; allowed for engine 'postgres': postgresql://"), ('opensearch', 'opensearch+postgresql://host/db/t', "found postgresql://; allowed for engine 'opensearch': http://")])
def test_what_is_expected_of_an_address_is_of_its_engine(engine, place, said):
    with pytest.raises(ConfigError, match=re.escape(said)): check_address(engine, place)


# Addresses to listen on

@pytest.mark.parametrize('host', ['', '*', '0', '00', '0x0', '0.0', '0.0.0', '0.0.0.0', '000.0.0.0', '::', '::0', '0::0', '::0.0.0.0', '::ffff:0.0.0.0', '::ffff:0:0', '0:0:0:0:0:0:0:0'])
def test_all_interfaces_are_refused_however_they_are_written(host):
    with pytest.raises(ConfigError, match='give the one address'): served_names(host)


@pytest.mark.parametrize('host, names', {'127.0.0.1': (), 'localhost': (), '::1': (), 'LOCALHOST': (), '127.1': ('127.1',), '0x7f000001': ('0x7f000001',), '10.1.2.3': ('10.1.2.3',), '0xa010203': ('0xa010203', '10.1.2.3')}.items())
def test_a_host_is_served_under_its_names(host, names): assert served_names(host) == names


@pytest.mark.parametrize('host', ['a b', 'x' * 300, 'a\0b', '999.1.1.1'])
def test_what_is_no_address_is_refused_in_one_line(host):
    with pytest.raises(ConfigError, match='no address of this machine') as error: served_names(host)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('place, host', [('', '127.0.0.1'), ('10.1.2.3', '10.1.2.3')])
def test_an_image_names_the_address_of_its_container(place, host, monkeypatch):
    monkeypatch.setenv('SPLADE_NB_HOST', place)
    needed = ['serve', '--data', 'toy']
    assert parser().parse_args(needed).host == host
    assert parser().parse_args([*needed, '--host', 'localhost']).host == 'localhost'


def test_the_image_serves_on_the_address_of_its_container():
    entry = json.loads(re.search(r'^ENTRYPOINT (.*)', (ROOT/'Dockerfile').read_text(), re.M)[1])
    known = {name: value for name, value in os.environ.items() if name != 'SPLADE_NB_HOST'}
    def said(**more): return subprocess.run([*entry, 'printenv', 'SPLADE_NB_HOST'], env=known | more, capture_output=True, text=True).stdout.strip()
    assert ip_address(said()) and said(SPLADE_NB_HOST='10.1.2.3') == '10.1.2.3'


# The server: connections, abandoned and expensive requests, many clients

class Answers:
    "A searcher that counts what it does and, where it is told, waits."
    parts = ['all']
    def __init__(self):
        self.index, self.encoder = SimpleNamespace(engine='exact'), SimpleNamespace(label=SimpleNamespace(model='77aa'), tokenizer=SimpleNamespace(names=[]))
        self.asked, self.begun, self.go_on = [], threading.Event(), threading.Event()

    def __len__(self): return 1

    def search(self, query, k, part):
        self.asked.append(query)
        if query == '오래':
            self.begun.set()
            assert self.go_on.wait(HANGS)
        return []

    def expand(self, text): return []
    def read(self, id): return None


@contextmanager
def running(searcher):
    "The real server in a thread, at a port of its own."
    server = web.http_server(web.application(searcher), port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started, 'the server')
    port = server.servers[0].sockets[0].getsockname()[1]
    try: yield server, port
    finally:
        searcher.go_on.set()
        server.should_exit = True
        thread.join()


def dial(port: int, sent: bytes = b'', client: str = '127.0.0.1') -> socket.socket:
    found = socket.create_connection(('127.0.0.1', port), timeout=HANGS, source_address=(client, 0))
    found.sendall(sent)
    return found


def asking(query: str) -> bytes: return f'GET /api/search?query={quote(query)} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'.encode()


def read_all(connection: socket.socket) -> bytes:
    with connection:
        try: return b''.join(iter(lambda: connection.recv(65_536), b''))
        except ConnectionError: return b''


def status(connection: socket.socket) -> int: return int(read_all(connection)[9:12] or 0)


HALF = b'GET / HTTP/1.1\r\nHost: localhost\r\nX: '


@pytest.mark.parametrize('attacker', ['127.0.0.1', '127.0.0.2'])
def test_half_open_connections_stop_nobody(attacker, monkeypatch):
    monkeypatch.setattr(web, 'CLIENT', 20)
    monkeypatch.setattr(web, 'ALL', 40)
    with running(Answers()) as (server, port):
        halves = [dial(port, HALF, attacker) for _ in range(60)]
        assert status(dial(port, asking('배'))) == 200
        assert len(server.server_state.connections) <= 20, 'the oldest made room'
        assert read_all(halves[0]) == b'' and read_all(halves[30]) == b''
        with halves[-1] as last:
            last.sendall(b'y\r\nConnection: close\r\n\r\n')
            assert status(last) == 200, 'one that is only slow is answered'
        for each in halves: each.close()


@pytest.mark.parametrize('sent', [b'', HALF, b'GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n'], ids=['nothing', 'half', 'after an answer'])
def test_a_connection_without_a_request_ends(sent, monkeypatch):
    monkeypatch.setattr(web, 'HEAD', 0.05)
    with running(Answers()) as (server, port):
        read_all(dial(port, sent))  # returns when the server has hung up
        until(lambda: not server.server_state.connections)


def test_letter_after_letter_does_not_keep_a_connection_open(monkeypatch):
    monkeypatch.setattr(web, 'HEAD', 0.05)
    with running(Answers()) as (server, port), dial(port, HALF) as slow:
        with pytest.raises(OSError):
            while True: slow.sendall(b'y')
        until(lambda: not server.server_state.connections)


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch):
    monkeypatch.setattr(web, 'HEAD', 0.05)
    monkeypatch.setattr(web, 'search_json', lambda query, hits: dict(query='가' * 20_000_000))
    with running(Answers()) as (server, port), dial(port, asking('배')):
        until(lambda: server.server_state.connections)
        until(lambda: not server.server_state.connections)


def test_where_all_are_at_work_the_next_is_told(monkeypatch):
    monkeypatch.setattr(web, 'CLIENT', 3)
    searcher = Answers()
    with running(searcher) as (server, port):
        busy = [dial(port, asking('오래')) for _ in range(3)]
        until(lambda: len(server.server_state.tasks) == 3)
        assert status(dial(port, asking('배'))) == 503
        searcher.go_on.set()
        assert [status(each) for each in busy] == [200] * 3


def test_two_hundred_clients_at_once_are_all_answered():
    searcher = Answers()
    with running(searcher) as (server, port):
        first = dial(port, asking('오래'))
        assert searcher.begun.wait(HANGS)
        others = [dial(port, asking(f'배 {number}')) for number in range(200)]
        until(lambda: len(server.server_state.tasks) == 201, 'the queue')
        searcher.go_on.set()
        assert [status(each) for each in [first, *others]] == [200] * 201
    assert sorted(searcher.asked) == sorted(['오래', *(f'배 {number}' for number in range(200))])


def test_one_that_waits_too_long_is_told_and_not_searched():
    searcher = Answers()
    with TestClient(web.application(searcher, wait=0.05), base_url='http://localhost') as client, ThreadPoolExecutor() as threads:
        first = threads.submit(client.get, '/api/search?query=오래')
        assert searcher.begun.wait(HANGS)
        second = client.get('/api/search?query=배')
        searcher.go_on.set()
        assert (second.status_code, first.result().status_code, searcher.asked) == (503, 200, ['오래'])


def test_a_client_that_left_costs_nothing_more():
    searcher = Answers()
    with running(searcher) as (server, port):
        first = dial(port, asking('오래'))
        assert searcher.begun.wait(HANGS)
        gone = [dial(port, asking('떠난다')) for _ in range(5)]
        until(lambda: len(server.server_state.tasks) == 6)
        for each in gone: each.close()
        until(lambda: len(server.server_state.tasks) == 1, 'their requests')
        searcher.go_on.set()
        assert status(first) == status(dial(port, asking('배'))) == 200
    assert searcher.asked == ['오래', '배']


def test_the_call_of_a_client_that_left_keeps_its_turn_until_it_ends():
    searcher = Answers()
    with running(searcher) as (server, port):
        first = dial(port, asking('오래'))
        assert searcher.begun.wait(HANGS)
        first.close()
        until(lambda: not server.server_state.tasks)
        second = dial(port, asking('배'))
        until(lambda: len(server.server_state.tasks) == 1)
        assert searcher.asked == ['오래'], 'two calls never run together'
        searcher.go_on.set()
        assert status(second) == 200


def posting(path: str, body: object) -> bytes:
    sent = json.dumps(body).encode()
    return f'POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n'.encode() + sent


@pytest.mark.parametrize('leaves', [True, False])
def test_texts_of_a_pipeline_take_turns_and_end_with_their_client(leaves, monkeypatch):
    begun, go_on, encoded = threading.Event(), threading.Event(), []
    def encode(encoder, texts, document):
        encoded.append(len(texts))
        begun.set()
        assert go_on.wait(HANGS)
        return sparse.csr_matrix((len(texts), 1), dtype='float32')
    monkeypatch.setattr(connector, 'side_vectors', encode)
    searcher = Answers()
    with running(searcher) as (server, port):
        pipeline = dial(port, posting(SIDES['document'], dict(input=['가' * 3000] * 4)))
        assert begun.wait(HANGS)
        if leaves:
            pipeline.close()
            until(lambda: not server.server_state.tasks)
        other = dial(port, asking('배'))
        until(lambda: len(server.server_state.tasks) == 2 - leaves)
        go_on.set()
        assert status(other) == 200 and searcher.asked == ['배']
        assert leaves or json.loads(read_all(pipeline).partition(b'\r\n\r\n')[2]) == [{}] * 4
    assert encoded == [1] * (1 if leaves else 4)


ASTRAL = '😀'


@pytest.mark.parametrize('path, body, code', {
    'a query': ('/api/search', dict(query=ASTRAL * 1000), 200), 'more': ('/api/search', dict(query='가' * 1001), 422),
    'a text': ('/api/expand', dict(text=ASTRAL * 5000), 200), 'more letters': ('/api/expand', dict(text='가' * 5001), 422), 'an id': ('/api/expand', dict(id='가' * 1200 + '\0'), 404), 'no id': ('/api/expand', dict(id='\ud800'), 422),
    'texts': (SIDES['document'], dict(input=[ASTRAL * 12_500] * 32), 200), 'a long one': (SIDES['document'], dict(input=['가' * 100_000]), 200),
    'longer': (SIDES['query'], dict(input=['가' * 100_001]), 422), 'more texts': (SIDES['query'], dict(input=['가'] * 33), 422),
    'more together': (SIDES['document'], dict(input=['가' * 12_501] * 32), 422), 'byte 0': ('/api/search', dict(query='배\0'), 422)}.values())
def test_limits_are_counted_in_letters_before_any_work(path, body, code, monkeypatch):
    "Every letter within a limit is taken, however JSON writes it; what is above is refused and never encoded."
    encoded = []
    monkeypatch.setattr(connector, 'side_vectors', lambda encoder, texts, document: encoded.append(texts) or sparse.csr_matrix((len(texts), 1), dtype='float32'))
    searcher = Answers()
    answer = TestClient(web.application(searcher), base_url='http://localhost').post(path, content=json.dumps(body), headers={'Content-Type': 'application/json'})
    assert answer.status_code == code, answer.text[:200]
    assert code == 200 or not (encoded or searcher.asked)


@pytest.mark.parametrize('query', ['%B1%E8%C4%A1', '%ff', '%ED%A0%80', '%00', '%EA%B9%80%00'])
def test_bytes_that_are_no_text_are_refused(query):
    searcher = Answers()
    client = TestClient(web.application(searcher), base_url='http://localhost')
    assert client.get(f'/api/search?query={query}').status_code == client.get(f'/api/health?x=%FF').status_code == 422
    assert not searcher.asked and client.get('/api/search?query=%EA%B9%80').status_code == 200


# Terminals

FORGED = '쌀밥\n2. 위조  9.99 가짜\r\x1b[2J\x1b]0;제목\x07\x9b31m\u202e뒤집힘\u2028줄\x7f'


@pytest.mark.parametrize('text, shown', {'쌀밥 🍚 한복': '쌀밥 🍚 한복', 'a\tb\r\nc': 'a b  c', '\x1b[31m': r'\x1b[31m', '\u202e': r'\u202e', '\ud800': r'\ud800',
                                         '\u3000': ' ', 'e\u0301': 'e\u0301', None: 'None'}.items())
def test_a_terminal_shows_a_text_and_does_not_obey_it(text, shown): assert printable(text) == shown


def test_a_text_cannot_forge_a_hit(capsys):
    print_hits([Hit(FORGED, 1.0, FORGED, FORGED, [Term(FORGED, 'word', 1.0, False)]), Hit('2', .5, '', '밥', [])])
    lines = capsys.readouterr().out.split('\n')
    assert len(lines) == 5 and lines[2].startswith('2. 2  0.50') and all(line.isprintable() for line in lines)


def test_an_error_cannot_forge_a_line(capsys):
    @exit_codes
    def main(): raise ConfigError(FORGED)
    assert main() == 2
    assert (said := capsys.readouterr().err).endswith('\n') and said[:-1].isprintable()


# Scripts that an export brings

PACKAGE = Path(web.__file__).parents[1]
HUB, SCRIPTS = PACKAGE/'hub', {path.name: path for path in PACKAGE.rglob('*.sh') if path.name != 'request.sh'}


class Heard(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.heard.append((self.path, self.headers.get('authorization')))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{}')
    def log_message(self, *_): pass


def shell(script: str, *arguments: str, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(['bash', '-c', f'set -euo pipefail; source request.sh; {script}', 'script', *arguments], cwd=HUB, capture_output=True, text=True,
                          env=os.environ | environment)


def exported(script: str, folder: Path, **environment) -> subprocess.CompletedProcess:
    "A script as it lies in an export, beside the requests that it makes."
    for path in (SCRIPTS[script], HUB/'request.sh'): shutil.copy(path, folder)
    return subprocess.run(['bash', folder/script], env=os.environ | environment, capture_output=True, text=True)


@pytest.mark.parametrize('password', ['bibimbap', 'a"b\\c $x`', 'a&b|c/d@e%f', '비빔밥', 'first\nurl = "http://127.0.0.1:1/"', 'a\r\n\tb ', '\n'])
def test_a_script_sends_the_password_as_it_is(password):
    with ThreadingHTTPServer(('127.0.0.1', 0), Heard) as server:
        server.heard = []
        threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01)).start()
        try: done = shell('at URL ""; log_in admin "$1"; call GET x', password, URL=f'http://127.0.0.1:{server.server_port}/')
        finally: server.shutdown()
    assert (done.returncode, done.stdout) == (0, '{}'), done.stderr
    assert server.heard == [('/x', 'Basic ' + base64.b64encode(f'admin:{password}'.encode()).decode())]


@pytest.mark.parametrize('value', ['plain', 'a&b', r'\1|/&', 'a"b\\', '줄\n바꿈', '{other}'])
def test_a_script_fills_in_a_value_as_it_is(value, tmp_path):
    (tmp_path/'body').write_text('{"name": "{value}", "again": "x{value}"}')
    done = shell('fill "$1/body" value "$2" > "$1/filled"; begin "$1/filled" \'"n": 1\'', str(tmp_path), value)
    assert json.loads(done.stdout) == dict(n=1, name=value, again=f'x{value}'), done.stderr


@pytest.mark.parametrize('script, setting, value', [(script, name, value) for script, name in (('register.sh', 'CHUNK'), ('import.sh', 'CHUNK'), ('deploy.sh', 'PATIENCE'))
                                                    for value in ('0', '-1', '08', '1e3', 'x[$(id)]', '99999999999')]
                         + [('register.sh', 'PAUSE', ''), ('register.sh', 'PAUSE', 'x')][1:])
def test_a_script_refuses_a_number_that_is_none(script, setting, value, tmp_path):
    done = exported(script, tmp_path, **{setting: value})
    assert done.returncode == 1 and done.stderr.startswith(f'{setting}={value}: a') and done.stderr.count('\n') == 1


@pytest.mark.parametrize('script, setting', [('register.sh', 'OPENSEARCH_URL'), ('import.sh', 'ELASTICSEARCH_URL'), ('deploy.sh', 'VESPA_CONFIG_URL')])
def test_a_script_takes_no_password_in_an_address_and_shows_none(script, setting, tmp_path):
    done = exported(script, tmp_path, **{setting: 'https://admin:bibim/bap@localhost:9200'})
    assert done.returncode == 1 and setting in done.stderr and 'bibim' not in done.stderr + done.stdout
