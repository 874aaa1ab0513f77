"""Files that are cut or garbled, disks and terminals that refuse: one line that says where, whoever fails inside."""
import errno, json, os, resource, shutil, subprocess, sys
from contextlib import contextmanager
from pathlib import Path
import pytest
from splade_nb.config.files import ConfigError, Damaged, clear_errors, read_json, reading, replaced, texts_of, writing
from splade_nb.data.tokenizer import SpladeTokenizer, train_unigram
from splade_nb.model.encode_shards import encode_shards, read_shards, shard_ids
from splade_nb.model.initialization import toy_model

TEXTS = ['경복궁 야간 개장', '제주 여행 일정', '김치 담그는 법']
PROGRAM = '''
import sys
from splade_nb.config.command_line import exit_codes
@exit_codes
def main():
    for line in range(int(sys.argv[1])): print('경복궁 \\U0001f600', line)
sys.exit(main())'''


@pytest.mark.parametrize('error', [OSError(errno.ENOSPC, 'full'), PermissionError(errno.EACCES, 'no'), OSError(errno.EROFS, 'no', 'out/x'),
                                   RuntimeError('I/O error: No space left on device (os error 28)'), OSError('9 requested and 2 written')])
def test_a_disk_that_refuses_is_named(error):
    with pytest.raises(ConfigError, match='^out: cannot be written: [A-Z][a-z -]+. Make room'):
        with writing('out'): raise error


@contextmanager
def largest_file(size: int):
    "A disk that takes no larger file: the system stops inside a copy, and its error names the source first."
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try: yield
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize('copied', [shutil.copyfile, shutil.copy, shutil.copy2])
def test_a_copy_onto_a_full_disk_names_where_it_goes(copied, tmp_path):
    source, target = tmp_path/'package'/'tokenizer.json', tmp_path/'out'/'tokenizer.json'
    for path in (source, target): path.parent.mkdir()
    source.write_bytes(b'x' * 100_000)
    with pytest.raises(ConfigError) as said, writing(target.parent), largest_file(1000): copied(source, target)
    assert str(said.value).startswith(f'{target.parent}: cannot be written: File too large. Make room')
    with pytest.raises(ConfigError, match='out/tokenizer.json: File too large'), clear_errors(), largest_file(1000): copied(source, target)


def test_a_copy_of_a_file_that_is_not_there_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError), writing(tmp_path/'out'): shutil.copyfile(tmp_path/'none.json', tmp_path/'out')
    with pytest.raises(ConfigError, match='none.json: No such file'), clear_errors(): os.replace(tmp_path/'none.json', tmp_path/'x')


@pytest.mark.parametrize('error', [ConnectionResetError(errno.ECONNRESET, 'gone'), RuntimeError('no gradient'), KeyError('x'), OSError(errno.ENOENT, 'no', 'texts.txt')])
def test_what_is_no_fault_of_the_place_is_not_said_of_it(error):
    with pytest.raises(type(error)):
        with writing('out'): raise error


def test_an_entry_tells_what_nothing_inside_has_told(tmp_path):
    with pytest.raises(ConfigError, match='none.txt: No such file or directory'), clear_errors(): open(tmp_path/'none.txt')
    with pytest.raises(KeyError), clear_errors(): raise KeyError('a fault of the program keeps its traceback')


@pytest.mark.parametrize('content, said', [(None, 'missing'), (b'{"a": ', 'no JSON at line 1, column 7'), (b'[]', 'found list'), (b'{}', "'model' is not there"), (b'\xb8', 'byte 0xb8 at 0 is no UTF-8')])
def test_a_file_that_is_not_whole_is_named(content, said, tmp_path):
    if content is not None: (tmp_path/'x.json').write_bytes(content)
    with pytest.raises(Damaged, match=f'x.json: .*{said}.*; encode again'): read_json(tmp_path/'x.json', 'model', instead='encode again')


@pytest.mark.parametrize('lines, out, environment, code, said', [
    ('3', '/dev/full', {}, 2, 'No space left on device'), ('9999', 'closed', {}, 141, ''), ('1', 'none', {}, 0, ''), ('1', 'read', dict(PYTHONIOENCODING='cp949'), 0, '')])
def test_a_program_ends_in_one_line(lines, out, environment, code, said):
    reader, writer = os.pipe()
    if out == 'closed': os.close(reader)
    given = open(out, 'wb') if out[0] == '/' else writer
    command = [sys.executable, '-c', PROGRAM, lines]
    done = subprocess.run(['sh', '-c', '"$0" "$@" >&-', *command] if out == 'none' else command, stdout=given, stderr=subprocess.PIPE, env=os.environ | environment)
    assert done.returncode == code and done.stderr.decode().count('\n') == bool(said) and said in done.stderr.decode()
    if out == 'read': assert os.read(reader, 99).decode('cp949') == '경복궁 \\U0001f600 0\n'
    for each in {writer, *([reader] if out != 'closed' else [])}: os.close(each)


@pytest.fixture(scope='module')
def shards(tmp_path_factory):
    tokenizer = SpladeTokenizer(train_unigram(TEXTS, 40))
    model, folder = toy_model(len(tokenizer)).eval(), tmp_path_factory.mktemp('shards')
    def encoded(): return encode_shards(model, tokenizer, TEXTS, folder, size=1)
    assert encoded() == 3
    return folder, encoded


@pytest.mark.parametrize('name, read', [('shards.json', read_shards), ('shard-000001.npz', read_shards), ('texts-000001.json', shard_ids)])
@pytest.mark.parametrize('size', [0, 60])
def test_a_cut_shard_is_named_and_made_anew(name, read, size, shards):
    folder, encoded = shards
    whole = (folder/name).read_bytes()
    (folder/name).write_bytes(whole[:size])
    with pytest.raises(Damaged, match=f'{name}: damaged .*again'): list(read(folder))
    if name != 'shards.json': assert encoded() == 1 and len(list(read(folder))) == 3
    (folder/name).write_bytes(whole)


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path):
    with pytest.raises(ConfigError, match='x.json: cannot be written'):
        with replaced(tmp_path/'x.json') as file:
            file.write('half')
            raise OSError(errno.ENOSPC, 'full')
    assert list(tmp_path.iterdir()) == []


def test_the_place_of_what_is_no_text_is_said():
    for wrong, said in (([*TEXTS * 300, None], 'texts.900. None'), (b'abc', 'found bytes'), (['\ud800'], 'half of a surrogate pair')):
        with pytest.raises(ConfigError, match=said): texts_of(wrong)
