#!/usr/bin/env bash
# Makes dashboard.schema.json from Grafana's own types. Needs node and npm, and only after a change of dashboard.ts or of
# Grafana's version; the result is committed, so that checking a dashboard needs neither.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$(dirname "$0")"
cp dashboard.ts tsconfig.json package.json "$work"
(
  cd "$work"
  npm install --silent --no-package-lock --ignore-scripts
  npx tsc -p tsconfig.json
  npx ts-json-schema-generator --path dashboard.ts --tsconfig tsconfig.json --type CheckedDashboard -o schema.json
)
mv "$work/schema.json" dashboard.schema.json
