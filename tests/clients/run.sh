#!/usr/bin/env bash
# Run real clients, schemathesis and a browser against a server of the golden model: make test-clients
# Their environments lie in build/clients. PYTHON is the one that has Dragoman, FUZZ the seconds of schemathesis.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python} home=$PWD/build/clients here=$PWD/tests/clients left_out=0
clients="libretranslatepy==2.1.4 deep-translator==1.11.4 libretranslate-aio==0.1.3 transpolibre==0.8.15"

mkdir -p "$home/files"
[ -x "$home/py/bin/python" ] || "$python" -m venv "$home/py"
# shellcheck disable=SC2086  # several words
"$home/py/bin/pip" install --quiet $clients schemathesis==4.32.5 playwright==1.65.2
if command -v npm > /dev/null; then
  npm install --silent --no-audit --prefix "$home/js" translate@3.1.0 libretranslate@1.0.1 axe-core@4
fi
axe=$home/js/node_modules/axe-core/axe.min.js
[ -f "$axe" ] || axe=

"$python" scripts/serve.py --model tests/golden/bundle --port 0 --suggestions "$home/files/suggestions.jsonl" > "$home/log" 2>&1 &
server=$!
trap 'kill $server 2> /dev/null || true' EXIT
for _ in $(seq 120); do grep -q ^http "$home/log" && break; sleep 1; done
url=$(grep ^http "$home/log") || { cat "$home/log" >&2; exit 1; }

"$home/py/bin/python" "$here/clients.py" "$url" "$home/files"
if [ -d "$home/js" ]; then
  cp "$here/client.mjs" "$home/js/" && node "$home/js/client.mjs" "$url"
else
  echo "npm: not installed, its clients and axe-core were left out"
  left_out=$((left_out + 1))
fi
if [ -x /usr/bin/chromium ]; then
  "$home/py/bin/python" "$here/page.py" "$url/" "$home/screenshots" ${axe:+"$axe"}
else
  echo "chromium: not installed, the page was left out"
  left_out=$((left_out + 1))
fi
cd "$home/files"  # schemathesis leaves its own files there
"$home/py/bin/schemathesis" run "$url/openapi.json" --max-time "${FUZZ:-120}" --checks \
  not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method
kill $server
wait $server
echo "the server stopped with exit code 0; left out: $left_out of 2 (npm's clients with axe-core, the page)"
