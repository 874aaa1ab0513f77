"""The container without docker: the steps of the Dockerfile, read from it and executed in a folder."""
import json, os, re, shlex, shutil, subprocess, sys, tempfile
from pathlib import Path
import pytest
import yaml
from conftest import ROOT, tracked

WORKFLOW = yaml.safe_load((ROOT/'.github/workflows/containers.yml').read_text())
PATTERNS = [line for line in (ROOT/'.dockerignore').read_text().splitlines() if line and line[0] != '#']
STUB = '#!/bin/sh\necho "${0##*/} $*" >> "$RECORD"\n[ "$2" != venv ] || mkdir "$3"\n'


def instructions() -> list:
    "Name and rest of each instruction of the Dockerfile."
    source = re.sub(r'^#.*\n', '', (ROOT/'Dockerfile').read_text(), flags=re.M).replace('\\\n', '')
    return [tuple(line.split(maxsplit=1)) for line in source.splitlines() if line.strip()]


def ignored(path: str) -> bool:
    "Whether docker leaves a path out: the last pattern that matches it or a folder above it decides."
    found = False
    for pattern in PATTERNS:
        expression = re.escape(pattern.removeprefix('!')).replace(r'\*\*/', '(?:.*/)?').replace(r'\*', '[^/]*')
        if re.fullmatch(f'{expression}(?:/.*)?', path): found = pattern[0] != '!'
    return found


def context() -> list:
    "Files of the project that docker sees."
    return [name for path in tracked() if not ignored(name := path.relative_to(ROOT).as_posix())]


class Build:
    "Executes instructions below a folder, which takes the place of /."
    def __init__(self, root: Path, **arguments):
        self.root, self.arguments, self.folder, self.ran = root, arguments, root, []
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(('VIRTUAL_ENV', 'PYTHONPATH', 'MAKE'))}

    def place(self, path: str) -> str: return str(self.root) + path if path.startswith('/') else path

    def shell(self, command: str, **more) -> subprocess.CompletedProcess:
        done = subprocess.run(['sh', '-c', command], cwd=self.folder, env=self.environment | more, capture_output=True, text=True)
        assert done.returncode == 0, f'{command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}'
        return done

    def run(self, command: str) -> None:
        subprocess.run(['sh', '-n', '-c', command], check=True)
        if command.startswith('apt-get'): return  # of the image alone
        assert not re.search(r'(?<![\w.}])/(?!bin/)', command), f'a path of the image: {command}'
        self.shell(command)
        self.ran.append(command)

    def copy(self, names: str) -> None:
        *sources, goal = shlex.split(names)
        files, place = context(), self.folder/goal
        for source in sources:
            source = os.path.normpath(source)
            taken = [path for path in files if source in ('.', path) or path.startswith(f'{source}/')]
            assert taken, f'COPY {source}: nothing to copy'
            for path in taken:
                target = place/path if source == '.' else place/Path(path).name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT/path, target)

    def execute(self, name: str, rest: str) -> None:
        match name:
            case 'FROM': assert rest == f'python:{(ROOT/".github/workflows/ci.yml").read_text().split("python-version: ")[1][1:5]}-slim'
            case 'ARG': self.environment[rest.partition('=')[0]] = self.arguments.get(rest.partition('=')[0], rest.partition('=')[2])
            case 'ENV': self.environment |= {key: self.place(value) for key, value in (pair.split('=', 1) for pair in shlex.split(rest))}
            case 'WORKDIR':
                self.folder = Path(self.place(rest))
                self.folder.mkdir(parents=True)
            case 'COPY': self.copy(rest)
            case 'RUN': self.run(rest)
            case 'ENTRYPOINT': self.entry = json.loads(rest)
            case 'CMD': self.command = json.loads(rest)
            case _: raise ValueError(f'Dockerfile: {name} is not known here')


def test_the_context_is_what_git_holds():
    if (ROOT/'.git').exists(): assert context() == [path.relative_to(ROOT).as_posix() for path in tracked()]
    left_out = ['.venv/bin/python', 'outputs/v28/summary.json', 'splade_nb/data/__pycache__/x.pyc', 'docs/_build/html/index.html', 'data/miracl_ko/corpus.jsonl', 'splade_nb.egg-info/PKG-INFO']
    assert [path for path in left_out if not ignored(path)] == []
    kept = (ROOT/'.gitignore').read_text().split()
    missing = [line for line in kept if not any(line.strip('/') == pattern.removeprefix('**/').strip('/') or line.startswith('!') and line.rstrip('/') == pattern for pattern in PATTERNS)]
    assert missing == [], 'what git ignores, docker ignores'


def test_another_build_of_torch_is_asked_of_uv(tmp_path):
    tools = tmp_path/'tools'
    tools.mkdir()
    for name in ('python', 'uv'): (tools/name).write_text(STUB); (tools/name).chmod(0o755)
    build = Build(tmp_path/'image', TORCH='cpu')
    build.environment |= dict(PATH=f'{tools}:{os.environ["PATH"]}', RECORD=str(tmp_path/'record'))
    (tmp_path/'image/opt').mkdir(parents=True)
    for name, rest in instructions():
        if name in ('ENV', 'ARG', 'WORKDIR') or name == 'RUN' and 'TORCH' in rest: build.execute(name, rest)
    venv = f'{tmp_path}/image/opt/splade_nb'
    assert (tmp_path/'record').read_text().splitlines() == [
        'python -m pip install --quiet uv', f'python -m venv {venv}',
        f'uv pip install --quiet --python {venv} --torch-backend cpu --constraint constraints.txt torch']
    assert (Path(venv)/'.ready').read_text().strip() == str(build.folder.resolve())  # make keeps what uv installed


def test_the_editor_opens_the_same_image():
    opened, environment = json.loads((ROOT/'.devcontainer/devcontainer.json').read_text()), dict(instructions())
    assert (ROOT/'.devcontainer'/opened['build']['dockerfile']).resolve() == ROOT/'Dockerfile'
    assert opened['workspaceFolder'] == environment['WORKDIR'] and f'target={environment["WORKDIR"]},' in opened['workspaceMount']
    venv = re.search(r'VENV=(\S+)', environment['ENV'])[1]
    assert opened['customizations']['vscode']['settings']['python.defaultInterpreterPath'] == f'{venv}/bin/python'
    names = {rest.partition('=')[0] for name, rest in instructions() if name == 'ARG'}
    builds = ' '.join(step.get('run', '') for step in WORKFLOW['jobs']['image']['steps'])
    assert set(opened['build']['args']) == set(re.findall(r'--build-arg (\w+)=', builds)) == names


@pytest.fixture
def beside():
    "A folder on the disk of the environment, so that its files can be linked."
    (ROOT/'outputs').mkdir(exist_ok=True)
    yield (folder := Path(tempfile.mkdtemp(prefix='.container-', dir=ROOT/'outputs')))
    subprocess.run(['rm', '-rf', folder], check=True)  # far quicker than `shutil.rmtree` with so many files


@pytest.fixture
def built(beside) -> Build:
    "Every step but Debian's packages and downloads, in an environment of its own."
    build = Build(beside)
    interpreter = beside/'python'
    interpreter.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(ROOT/"tests/linked_venv.py"))} "$@"\n', encoding='utf-8')
    interpreter.chmod(0o755)
    build.environment['PYTHON'] = str(interpreter)  # the downloads themselves are tested by `.ci/run`, which begins with them
    for name, rest in instructions(): build.execute(name, rest)
    assert build.command == ['make', 'train'] and 'make install' in build.ran
    return build


@pytest.mark.slow
def test_the_steps_give_a_container_whose_commands_work(built):
    "All files of git are in it, as a test above proves, so that it trains as a checkout does."
    shown = built.shell('make environment data')
    assert 'installing' not in shown.stdout and 'miracl_ko' in shown.stdout  # what the editor types finds it ready


@pytest.mark.weekly
def test_the_steps_give_a_container_that_trains(built):
    "The smoke training of the workflow."
    smoke = shlex.join(WORKFLOW['env']['SMOKE'].split())
    assert smoke.split()[:2] == built.command
    built.shell(smoke)
    for name in ('summary.json', 'report.html'): assert (built.folder/'outputs/smoke'/name).stat().st_size
