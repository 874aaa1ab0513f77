"""The search page over a real socket: many clients at once, hostile requests, a browser."""
import asyncio, re, signal, socket, subprocess, sys, threading
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote
from urllib.request import urlopen
import httpx, psutil, pytest
from chromium import HANGS, until
from splade_nb.config.files import ConfigError
from splade_nb.config.versions import resolve
from splade_nb.data.records import toy_corpus
from splade_nb.serving import web
from splade_nb.serving.searcher import Hit, Term
from splade_nb.training.dataset import as_searched, prepare, save_model_folder

SLOW_FIXTURES = 'project',

MEGABYTE = 2 ** 20
CLIENTS = 200


@pytest.fixture(scope='module')
def project(tmp_path_factory) -> Path:
    "A folder with a model that was not trained: its start has expansions already."
    folder = tmp_path_factory.mktemp('project')
    (folder/'settings.ini').touch()
    settings = resolve('splade_ko', hidden=64, layers=1, vocabulary=300, counted_terms=1024)
    save_model_folder(as_searched(prepare(settings, toy_corpus(), seed=42)), folder/'run')
    return folder


def free_port() -> int:
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return free.getsockname()[1]


def answers(port: int) -> bool:
    try: return urlopen(f'http://127.0.0.1:{port}/api/health', timeout=5).status == 200
    except OSError: return False


def started(project: Path) -> tuple: # process, port
    "The service at a free port, once it answers or has ended: before it takes the port, another program may."
    port = free_port()
    program = [sys.executable, '-m', 'splade_nb.cli', 'serve', '--model', 'run', '--data', 'toy', '--host', '127.0.0.1', '--port', str(port)]
    with open(project/'log.txt', 'w') as log: process = subprocess.Popen(program, cwd=project, stderr=log)
    until(lambda: process.poll() is not None or listens(process, port) and answers(port), 'the service')
    return process, port


def listens(process, port: int) -> bool:
    "Whether it is this process that has the port."
    try: held = psutil.Process(process.pid).net_connections()
    except psutil.Error: return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in held)


@pytest.fixture(scope='module')
def served(project):
    "The service as a person starts it: its process and its address."
    process, port = started(project)
    while process.poll() is not None and 'Address already in use' in (project/'log.txt').read_text():
        process, port = started(project)
    assert process.poll() is None, (project/'log.txt').read_text()
    yield psutil.Process(process.pid), f'http://127.0.0.1:{port}'
    process.send_signal(signal.SIGINT)
    assert process.wait(HANGS) in (0, 130, -signal.SIGINT)
    assert 'Traceback' not in (project/'log.txt').read_text()


def request(line: str, *headers: str) -> bytes: return '\r\n'.join([f'{line} HTTP/1.1', *headers, '', '']).encode()


# Many at once

async def answered(client, query: str): # on a machine with other work a request may wait too long: it is sent again
    while (result := await client.post('/api/search', json={'query': query})).status_code == 503:
        assert 'busy' in result.json()['detail']
    return result


async def ask_together(address: str, clients: int, rounds: int) -> list: # statuses
    async with httpx.AsyncClient(base_url=address, timeout=HANGS, limits=httpx.Limits(max_connections=None)) as client:
        async def one(number: int) -> list:
            queries = [f'경복궁 한복 {number} {again}' for again in range(rounds)]
            results = [await answered(client, query) for query in queries]
            return [result.status_code if result.json()['hits'][0]['id'] == 'palace' else 'wrong' for result in results]
        return sum(await asyncio.gather(*map(one, range(clients))), [])

@pytest.mark.slow

def test_two_hundred_clients_at_once(served):
    process, address = served
    assert set(asyncio.run(ask_together(address, 20, 1))) == {200}
    before = process.memory_info().rss
    assert asyncio.run(ask_together(address, CLIENTS, 1)) == [200] * CLIENTS
    assert process.memory_info().rss - before < 100 * MEGABYTE


IS_JSON = 'Content-Type: application/json'


def test_large_texts_are_refused_before_they_are_held(served):
    process, address = served
    before = process.memory_info().rss
    def endless():
        for _ in range(64): yield b'x' * MEGABYTE
    for _ in range(4):
        with socket.create_connection(('127.0.0.1', httpx.URL(address).port)) as raw:
            raw.settimeout(HANGS)
            raw.sendall(request('POST /api/expand', 'Host: localhost', IS_JSON, 'Transfer-Encoding: chunked'))
            try:
                for block in endless(): raw.sendall(b'%x\r\n%s\r\n' % (len(block), block))
            except OSError: pass # it hung up
            try: assert raw.recv(12) in (b'', b'HTTP/1.1 413')
            except ConnectionError: pass
    assert process.memory_info().rss - before < 50 * MEGABYTE


# Hostile requests

def raw_answer(address: str, request: bytes) -> bytes:
    with socket.create_connection(('127.0.0.1', httpx.URL(address).port), timeout=HANGS) as raw:
        raw.sendall(request)
        parts = []
        try:
            while part := raw.recv(65536): parts.append(part)
        except ConnectionError: pass
        return b''.join(parts)


PATHS = ['/..%2f..%2fetc/passwd', '/../../../../etc/passwd', '/%2e%2e/%2e%2e/etc/passwd', '//etc/passwd', '/etc/passwd',
         'File:///etc/passwd', '/page.html', '/..\\..\\etc\\passwd', '/api/../../etc/passwd',
         '/api/search/../../../etc/passwd', '/%00/etc/passwd', '/splade_nb/page.html', '/box.json', '/texts.db', '*']
HOSTS = ['Host: evil.example', 'Host: localhost.evil.example', 'Host: 127.0.0.1.evil.example', 'Host: evil@localhost',
         'Host: ', 'X: y', 'Host: localhost\r\nHost: evil.example']
HEADERS = ['X-Original-URL: /etc/passwd', 'X-Rewrite-URL: /etc/passwd', 'X-Forwarded-Host: evil.example',
           'X-Sendfile: /etc/passwd', 'Range: bytes=0-10', 'Referer: ../../etc/passwd', 'Upgrade: websocket',
           'X-HTTP-Method-Override: DELETE', 'Origin: http://evil.example']
NO_REQUESTS = [request('GET /', 'Host: localhost', 'X: ' + 'y' * 200_000),
               request('GET /?q=' + 'x' * 200_000, 'Host: localhost'), b'\x16\x03\x01\x02\x00', b'GET\r\n\r\n',
               request('POST /api/search', 'Host: localhost', 'Content-Length: -1')]


@pytest.mark.parametrize('target', PATHS)
def test_no_path_reads_a_file(served, target):
    answer = raw_answer(served[1], request(f'GET {target}', 'Host: localhost', 'Connection: close'))
    assert answer[:12] in (b'HTTP/1.1 404', b'HTTP/1.1 400') and b'root:' not in answer and b'SQLite' not in answer


@pytest.mark.parametrize('header', HOSTS)
def test_another_host_is_refused(served, header):
    answer = raw_answer(served[1], request('GET /', header, 'Connection: close'))
    assert answer.startswith(b'HTTP/1.1 400') and b'<html' not in answer


@pytest.mark.parametrize('header', HEADERS)
def test_a_strange_header_changes_nothing(served, header):
    answer = raw_answer(served[1], request('GET /api/health', 'Host: localhost', header, 'Connection: close'))
    assert answer.startswith(b'HTTP/1.1 200') and b'"texts":14' in answer and b'access-control' not in answer.lower()


@pytest.mark.parametrize('sent', NO_REQUESTS, ids=range(len(NO_REQUESTS)))
def test_what_is_no_request_gets_no_answer(served, sent):
    assert raw_answer(served[1], sent + b'\r\n\r\n')[:10] in (b'', b'HTTP/1.1 4')
    assert answers(httpx.URL(served[1]).port)


@pytest.mark.slow
def test_a_body_that_never_comes_is_not_waited_for(served):
    sent = request('POST /api/search', 'Host: localhost', IS_JSON, 'Content-Length: 100') + b'{"query"'
    assert raw_answer(served[1], sent).startswith(b'HTTP/1.1 408')


# A browser

@pytest.mark.parametrize('width', [390, 1280])
def test_a_query_is_typed_and_the_page_says_why(served, browser, width):
    address = served[1]
    browser.resize(width)
    browser.open(address)
    browser.wait('document.getElementById("about").textContent.includes("14")')
    fits = lambda: browser.value('document.documentElement.scrollWidth <= innerWidth')
    def requested(): return [event['request']['url'] for event in browser.seen('Network.requestWillBeSent')]
    def searches(): return [url for url in requested() if url.endswith('/api/search')]
    def count(selector): return browser.value(f'document.querySelectorAll("{selector}").length')
    assert fits() and browser.value('document.activeElement.id') == 'query'
    assert count('#examples button') == 3, 'texts without questions offer their titles'
    for syllable in ('ㅎ', '하', '한'):
        browser.call('Input.imeSetComposition', text=syllable, selectionStart=1, selectionEnd=1)
    browser.value('new Promise(done => setTimeout(done, 300))')  # fires after every timer of the page: none is longer
    assert browser.value('document.getElementById("query").value') == '한'
    assert not searches(), 'nothing is searched while a syllable is being put together'
    browser.call('Input.insertText', text='한복 입고 경복궁')
    browser.wait('document.querySelectorAll(".hit").length > 0')
    assert len(searches()) == 1 and fits()
    assert '경복궁' in browser.value('document.querySelector(".hit h2").textContent')
    assert '한복' in browser.value('[...document.querySelectorAll("mark")].map(mark => mark.textContent).join(" ")')
    assert browser.value('[...document.querySelector(".hit").querySelectorAll(".bar span")]'
                         '.every(bar => bar.getBoundingClientRect().width > 0)')
    browser.value('document.querySelector(".hit .row > .link").click()')
    browser.wait('!document.getElementById("halves").hidden')
    assert count('#own-terms .own') > 3 and count('#added-terms .added') > 3 and fits()
    levels = {event['entry']['level'] for event in browser.seen('Log.entryAdded')}
    assert not browser.seen('Runtime.exceptionThrown') and not levels & {'error', 'warning'}
    assert {httpx.URL(url).host for url in requested() if not url.startswith('data:')} == {'127.0.0.1'}


def test_a_text_typed_in_is_expanded(served, browser):
    browser.open(served[1])
    browser.value('document.getElementById("tab-expand").click()')
    browser.call('Input.insertText', text='서울 경복궁은 화요일에 쉬고 <b>한복</b>을 입은 관광객은 무료로 들어간다.')
    browser.value('document.querySelector("#open button").click()')
    browser.wait('document.querySelectorAll("#added-terms .added").length > 0')
    markup = '#halves section section, .name b:not([title])'
    assert not browser.value(f'document.querySelectorAll("{markup}").length'), 'a text is never markup'


def test_the_keyboard_is_enough(served, browser):
    browser.open(f'{served[1]}?q=%EA%B2%BD%EB%B3%B5%EA%B6%81') # 경복궁
    browser.wait('document.querySelectorAll(".hit").length > 0')
    browser.value('document.querySelector(".hit .row > .link").click()')
    assert browser.value('document.activeElement.id') == 'tab-expand', 'the button is gone, and the keyboard goes on where its text is shown'
    browser.value('document.activeElement.blur()')
    browser.key('/', text='/')
    assert browser.value('document.activeElement.id') == 'query'
    assert browser.value('document.getElementById("query").value') == '경복궁'
    browser.key('ArrowDown')
    assert browser.value('document.activeElement === document.querySelector(".hit")')
    browser.key('ArrowUp')
    browser.key('Escape')
    browser.wait('document.querySelectorAll(".hit").length === 0')
    browser.call('Accessibility.enable')
    nodes = browser.call('Accessibility.getFullAXTree')['nodes']
    def value(node, key): return node.get(key, {}).get('value')
    controls = [node for node in nodes if value(node, 'role') in ('button', 'tab', 'searchbox', 'textbox')]
    assert [node for node in controls if not node['ignored'] and not value(node, 'name')] == []


def test_a_question_without_spaces_is_read_with_them(served, browser):
    asked, read = (httpx.get(f'{served[1]}/api/search', params=dict(query=query)).json() for query in ('한복입고경복궁에서', '한복 입고 경복궁에서'))
    assert asked['read_as'] == read['read_as'] == read['query'] and asked['hits'] == read['hits'] and asked['hits']
    browser.open(f'{served[1]}?q={quote(asked["query"])}')
    browser.wait('document.querySelectorAll(".hit").length > 0')
    status = 'document.getElementById("search-status").textContent'
    assert browser.value(status).startswith('띄어 읽은 질문: 한복 입고 경복궁에서 · 글 ')
    browser.open(f'{served[1]}?q={quote(read["query"])}')
    browser.wait('document.querySelectorAll(".hit").length > 0')
    assert browser.value(status).startswith('글 ')


def test_what_is_missing_is_said_and_not_drawn(served, browser):
    assert httpx.get(f'{served[1]}/api/search', params=dict(query='🙂')).json()['hits'] == []
    browser.open(f'{served[1]}?q=%F0%9F%99%82') # 🙂
    browser.wait('document.getElementById("search-status").textContent.includes("없습니다")')
    assert not browser.value('document.querySelectorAll(".hit").length')


# A long text, an index that fails: the application alone, over a searcher with given answers

class GivenAnswers:
    "A searcher with given answers; `search` raises for one query."
    parts = ['all', 'learned', 'counted']
    def __init__(self, *found):
        self.found, self.index, self.asked = list(found), SimpleNamespace(engine='exact'), []
        self.encoder = SimpleNamespace(label=SimpleNamespace(model='77aa'))

    def __len__(self): return len(self.found)

    def search(self, query, k, part='all'):
        self.asked.append((query, part))
        if query == '고장': raise ConfigError('kim/texts.db: disk I/O error')
        return self.found[:k]


KIMCHI = Term('김치', 'word', 1.0, False)
ADDED = [Term('김치', 'word', .5, True, True), Term('kimchi', 'word', .5, True, True), Term('배추', 'word', .25, False, True)]
HIT = Hit('kimchi', 2.25, '김치', '배추를 소금에 절여 김치를 담근다.', [KIMCHI, *ADDED])


def steps(call) -> int: # bytecodes run in the service's module, and letters given to its searches
    "What a call costs, counted and not timed."
    found, search = [0], re.finditer
    def traced(frame, event, _):
        if frame.f_code.co_filename != web.__file__: return None
        frame.f_trace_opcodes = True
        found[0] += event == 'opcode'
        return traced
    def counted(pattern, text, *flags):
        found[0] += len(text)
        return search(pattern, text, *flags)
    before = sys.gettrace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web.re, 'finditer', counted)
        sys.settrace(traced)
        try: call()
        finally: sys.settrace(before)
    return found[0]


def test_a_passage_costs_as_much_as_the_text_is_long():
    terms = [KIMCHI, Term('배', 'word', .5, False), Term('-치', 'part', .2, False)]
    text = '배 김치 배추김치 소금 물 ' * 1600
    short, middle, long = (steps(lambda: web.passage(text[:letters], terms)) for letters in (2_400, 13_200, 24_000))
    assert short > 2_400 and 0.99 < (long - middle) / (middle - short) < 1.01, 'a letter costs the same in a long text'


def test_a_slow_passage_keeps_no_other_request_waiting(monkeypatch):
    begun, release, whole = threading.Event(), threading.Event(), web.passage
    released = []
    def slow(text, terms):
        begun.set()
        released.append(release.wait(20)) # ends by itself only where the loop stands still, which the last line tells
        return whole(text, terms)
    monkeypatch.setattr(web, 'passage', slow)

    async def both() -> tuple:
        over = httpx.ASGITransport(web.application(GivenAnswers(HIT)))
        async with httpx.AsyncClient(transport=over, base_url='http://localhost') as client:
            first = asyncio.create_task(client.post('/api/search', json={'query': '김치'}))
            await asyncio.to_thread(begun.wait)
            other = await client.get('/api/health')
            assert not first.done()
            release.set()
            return await first, other

    first, other = asyncio.run(both())
    assert other.json()['texts'] == 1 and first.json()['hits'][0]['id'] == 'kimchi'
    assert released == [True], 'the other request was answered while the passage was not done'


@pytest.mark.parametrize('body', (b'[]', b'null', b'"\xea\xb9\x80\xec\xb9\x98"', b''))
@pytest.mark.parametrize('path, name', [('search', 'query'), ('expand', 'text'), ('opensearch/queries', 'input')])
def test_a_body_that_is_no_object_is_told_what_is_expected(path, name, body):
    async def ask():
        over = httpx.ASGITransport(web.application(GivenAnswers(HIT)))
        async with httpx.AsyncClient(transport=over, base_url='http://localhost') as client:
            return await client.post(f'/api/{path}', content=body, headers={'content-type': 'application/json'})
    answer = asyncio.run(ask())
    assert answer.status_code == 422
    said = str(answer.json()['detail'])
    assert 'Field required' not in said and (name in said or 'text' in said), said


def test_a_sign_is_no_word_of_another_language():
    terms = [Term(name, 'word', 1.0, True, True) for name in ('▶', '♥', '24.', '▁URL', '-說', '김치')]
    assert [term['foreign'] for term in web.search_json('', [Hit('a', 1.0, '', '', terms)])['hits'][0]['terms']] == [False, False, False, True, True, False]


def test_a_port_that_is_taken_is_refused_before_texts_are_read(capsys):
    from splade_nb.cli import main
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        assert main(['serve', '--model', 'nowhere', '--data', 'nowhere', '--port', str(port)]) == 2
    assert capsys.readouterr().err == f'port={port}: cannot be opened on 127.0.0.1 (Address already in use); take another\n'


def test_the_number_of_texts_is_that_of_the_request():
    answers = GivenAnswers(HIT)
    async def asked() -> list:
        over, found = httpx.ASGITransport(web.application(answers)), []
        async with httpx.AsyncClient(transport=over, base_url='http://localhost') as client:
            for _ in range(2):
                found.append((await client.get('/api/health')).json()['texts'])
                answers.found.append(HIT)
        return found
    assert asyncio.run(asked()) == [1, 2]


@pytest.fixture
def given(): return GivenAnswers(HIT)


@pytest.fixture
def failing(given):
    "The address of a service whose index fails for one query."
    import uvicorn
    port = free_port()
    application = web.application(given, examples=('김치 담그기', '보쌈'))
    server = uvicorn.Server(uvicorn.Config(application, port=port, log_level='error', lifespan='off'))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not answers(port): assert thread.is_alive()
    yield f'http://127.0.0.1:{port}'
    server.should_exit = True
    thread.join()


def type_query(browser, text: str) -> None:
    browser.value('document.getElementById("query").select()')
    browser.call('Input.insertText', text=text)


@pytest.mark.parametrize('width', [390, 1280])
def test_a_part_is_chosen_and_an_example_asked(failing, given, browser, width):
    browser.resize(width)
    browser.open(failing)
    browser.wait('document.querySelectorAll("#examples button").length === 2')
    browser.value('document.querySelector("#examples button").click()')
    browser.wait('document.querySelectorAll(".hit").length === 1')
    names = 'JSON.stringify([...document.querySelectorAll(".hit .name")].map(name => name.textContent))'
    assert browser.value(names) == '["김치","＋kimchi외국어 · 질문과 글에 보탬","＋배추질문에 보탬"]', 'another token of the same letters is no other word'
    assert '점수의 33%는 모델이 보탠 말, 외국어 22%' in browser.value('document.querySelector(".note").textContent')
    assert browser.value('document.querySelectorAll(".hit .foreign").length') == 1 and not browser.value('document.getElementById("search-foreign").hidden')
    assert browser.value('document.documentElement.scrollWidth <= innerWidth')
    browser.value('document.querySelector("#parts input:checked").focus()')
    browser.key('ArrowRight', windowsVirtualKeyCode=39)
    browser.wait('location.search.includes("part=learned")')
    until(lambda: len(given.asked) == 2, 'the second search')
    assert given.asked == [('김치 담그기', 'all'), ('김치 담그기', 'learned')]
    browser.open(f'{failing}?q=%EB%B3%B4%EC%8C%88&part=counted') # 보쌈
    browser.wait('document.querySelectorAll(".hit").length === 1')
    assert given.asked[-1] == ('보쌈', 'counted') and browser.value('document.querySelector("#parts input:checked").value') == 'counted'
    assert httpx.get(f'{failing}/api/search', params=dict(query='김치', part='dense')).status_code == 422
    browser.open(f'{failing}?q={"a" * 1500}')
    browser.wait('document.querySelectorAll(".hit").length === 1')
    assert given.asked[-1][0] == 'a' * 1000, 'a link brings no more letters than the field holds'


def test_an_index_that_fails_is_said_and_older_hits_do_not_stand_for_an_answer(failing, browser, capsys):
    answer = httpx.post(f'{failing}/api/search', json={'query': '고장'})
    assert answer.status_code == 500 and 'service was started' in answer.json()['detail'] and 'kim' not in answer.text
    assert 'kim/texts.db: disk I/O error' in capsys.readouterr().err
    browser.open(failing)
    hits, status = 'document.querySelectorAll(".hit").length', 'document.getElementById("search-status").textContent'
    type_query(browser, '김치')
    browser.wait(f'{hits} === 1')
    type_query(browser, '고장')
    browser.wait(f'{status}.includes("까닭")')
    assert browser.value(hits) == 0
    type_query(browser, '김치')
    browser.wait(f'{hits} === 1')


def test_a_service_that_does_not_answer_is_said_on_the_page(failing, browser):
    browser.call('Network.setBlockedURLs', urls=['*/api/*'])
    try:
        browser.open(failing)
        browser.wait('document.getElementById("about").textContent.includes("알려 주지 않았습니다")')
        type_query(browser, '김치')
        browser.wait('document.getElementById("search-status").textContent.includes("닿지 못했습니다")')
    finally: browser.call('Network.setBlockedURLs', urls=[])
