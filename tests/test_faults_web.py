"""Server addresses and their passwords, addresses to listen on, connections and requests that cost too much, terminals."""
import base64
from types import SimpleNamespace
import pytest
from splade_nb.config.files import ConfigError
from splade_nb.serving import embedded_engines, engines, opensearch
from splade_nb.serving.network import ServerAddress, read_address, served_names, without_password
from splade_nb.serving.searcher import check_address

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
