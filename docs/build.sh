#!/usr/bin/env bash
# Build the site in docs/_build/html, and copies of the notebooks for Colab and Kaggle in docs/_build/browser.
#   docs/build.sh .venv/bin
set -euo pipefail
unset CDPATH
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")"

# KaTeX and mermaid are fetched once.
mermaid=_static/mermaid.min.js fetch=
for source in package.json package-lock.json _static/katex-init.js; do [ "$mermaid" -nt "$source" ] || fetch=1; done
if [ "$fetch" ]; then
  command -v npm > /dev/null || { echo 'the site needs npm once, to fetch KaTeX and mermaid: install Node.js' >&2; exit 1; }
  npm ci --silent
  mkdir -p _static/katex/fonts
  from=node_modules/katex/dist
  cp $from/katex.min.css _static/katex/
  cp $from/fonts/*.woff2 _static/katex/fonts/
  cat $from/katex.min.js $from/contrib/auto-render.min.js _static/katex-init.js > _static/katex/katex.js
  cp node_modules/mermaid/dist/mermaid.min.js $mermaid.part && mv $mermaid.part $mermaid
fi

cd ..
rm -rf docs/_build
"$bin/python" docs/build_site.py docs/nbs
"$bin/python" -m sphinx -q -W --keep-going -b html -c docs docs/nbs docs/_build/html
"$bin/python" docs/browser.py docs/_build/browser
echo docs/_build/html/index.html
