"""A browser for the tests: one Chromium, driven over its DevTools protocol, without a network."""
import base64, itertools, json, shutil, subprocess, time
from pathlib import Path

FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-sync', '--disable-dev-shm-usage', '--hide-scrollbars',
         '--disable-background-networking', '--disable-component-update', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1', '--remote-debugging-port=0', '--remote-allow-origins=*']


def program() -> str | None: return shutil.which('chromium') or shutil.which('google-chrome')


HANGS = 300  # seconds: only what hangs takes so long, on whatever machine


def until(found, what: str = 'the browser'):
    "What `found` gives once it is true; raises `TimeoutError` where that never comes."
    end = time.monotonic() + HANGS
    while time.monotonic() < end:
        if value := found(): return value
        time.sleep(0.02)
    raise TimeoutError(f'{what} did not answer in {HANGS} s')


class Chromium:
    "One tab; `said` holds every error that its page reported since it was opened."
    def __init__(self, folder: Path):
        import websocket
        self.process = subprocess.Popen([program(), *FLAGS, f'--user-data-dir={folder}', 'about:blank'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        address = folder/'DevToolsActivePort'  # a port and a path, once both are written
        port, path = until(lambda: address.exists() and len(lines := address.read_text().split()) == 2 and lines)
        self.socket = websocket.create_connection(f'ws://127.0.0.1:{port}{path}', timeout=HANGS)
        self.numbers, self.session, self.width, self.events, self.said = itertools.count(1), None, 0, [], []
        self.session = self.call('Target.attachToTarget', flatten=True, targetId=self.call('Target.createTarget', url='about:blank')['targetId'])['sessionId']
        for domain in ('Page', 'Runtime', 'Log', 'Network'): self.call(f'{domain}.enable')

    def call(self, method: str, **parameters) -> dict:
        "One command and its answer; what the page reports meanwhile is kept."
        number = next(self.numbers)
        self.socket.send(json.dumps(dict(id=number, method=method, params=parameters) | (dict(sessionId=self.session) if self.session else {})))
        while (message := json.loads(self.socket.recv())).get('id') != number: self.heard(message)
        if 'error' in message: raise RuntimeError(f'{method}: {message["error"]["message"]}')
        return message['result']

    def heard(self, message: dict) -> None:
        found, about = message.get('params', {}), message.get('method')
        self.events.append(message)
        if about == 'Runtime.exceptionThrown': self.said.append(found['exceptionDetails'].get('exception', {}).get('description') or found['exceptionDetails']['text'])
        elif about == 'Runtime.consoleAPICalled' and found['type'] == 'error': self.said.append(' '.join(str(a.get('value', a.get('description'))) for a in found['args']))
        elif about == 'Log.entryAdded' and found['entry']['level'] == 'error': self.said.append(f'{found["entry"]["text"]} {found["entry"].get("url", "")}')
        elif about == 'Network.loadingFailed' and not found.get('canceled'): self.said.append(f'not loaded: {found["type"]} {found["errorText"]}')

    def open(self, address: str, width: int = 0) -> list:
        "Go to a page, wait until it has loaded; the errors that it reported."
        for page in ('about:blank', address):  # what the last page says, also as it is left, is not said of this one
            if page == address and width: self.resize(width)  # an empty page is laid out at once
            self.value('0'); self.events.clear(); self.said.clear()
            self.call('Page.navigate', url=page)
            while not self.seen('Page.loadEventFired'): self.heard(json.loads(self.socket.recv()))
        return self.said

    def seen(self, method: str) -> list: return [event['params'] for event in self.events if event.get('method') == method]  # since the page was opened

    def key(self, name: str, **more) -> None:
        for kind in ('keyDown', 'keyUp'): self.call('Input.dispatchKeyEvent', type=kind, key=name, **more)

    def value(self, script: str):
        "What a script gives, promises awaited."
        found = self.call('Runtime.evaluate', expression=script, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in found: raise RuntimeError(found['exceptionDetails'].get('exception', {}).get('description') or found['exceptionDetails']['text'])
        return found['result'].get('value')

    def wait(self, script: str): return until(lambda: self.value(script), script)

    def resize(self, width: int, height: int = 900) -> None:
        if width == self.width: return
        self.width = width
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def dark(self, on: bool = True) -> None:
        self.call('Emulation.setEmulatedMedia', features=[dict(name='prefers-color-scheme', value='dark' if on else 'light')])

    def picture(self, path: Path, whole: bool = False) -> None:
        "A screenshot: of the window, or of the whole page."
        Path(path).write_bytes(base64.b64decode(self.call('Page.captureScreenshot', format='png', captureBeyondViewport=whole)['data']))

    def close(self) -> None:
        self.socket.close(); self.process.terminate(); self.process.wait(HANGS)


LOOK = r'''(async () => {
  await document.fonts.ready;
  const all = (query) => [...document.querySelectorAll(query)];
  const tofu = (element) => {
    const canvas = Object.assign(document.createElement('canvas'), {width: 48, height: 40}), pen = canvas.getContext('2d', {willReadFrequently: true});
    pen.font = '24px ' + getComputedStyle(element).fontFamily;
    const drawn = (text) => { pen.clearRect(0, 0, 48, 40); pen.fillText(text, 4, 30); return pen.getImageData(0, 0, 48, 40).data.join(); };
    return new Set(['가', '힣', '뷁', '\u{10FFFD}'].map(drawn)).size < 4;
  };
  return {images: all('img').filter((image) => !image.complete || !image.naturalWidth).map((image) => image.src.slice(-80)),
          maths: all('.katex-error').length + all('.math').filter((formula) => !formula.querySelector('.katex')).length,
          diagrams: all('pre.mermaid').filter((diagram) => !diagram.querySelector('svg') || diagram.querySelector('.error-icon')).length,
          tofu: /[가-힣]/.test(document.body.innerText) ? ['body', 'pre', 'code', 'h1', 'td'].filter((name) => document.querySelector(name) && tofu(document.querySelector(name))) : []};
})()'''
DRAWN = "!document.querySelector('pre.mermaid') || [...document.querySelectorAll('pre.mermaid')].every((diagram) => diagram.querySelector('svg'))"


def faults(browser: Chromium, address: str, widths: tuple = (1280, 390)) -> dict:
    "What a person would find wrong with a page: script errors, missing pictures, broken formulae and diagrams, boxes for Hangul, text beyond the edge."
    said = list(browser.open(address, widths[0]))
    browser.wait(DRAWN)
    found = browser.value(LOOK)
    for width in widths:
        browser.resize(width)
        wide = browser.value('document.documentElement.scrollWidth')
        if wide > width + 1: found[f'beyond {width} px'] = wide
    return {name: what for name, what in (found | dict(said=said + browser.said)).items() if what}
