#!/bin/bash
# Fails if a versions/*.mod has not the newest patch of its version of Kubernetes. Dependabot reads files called go.mod
# only.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
while IFS= read -r -d '' file; do
  read -r module version < <(awk '$1 ~ /^k8s\.io\/(kubernetes|api)$/ { print $1, $2 }' "$file" | sort -r)
  newest=$(cd "$(dirname "$file")/.." && GOWORK=off go list -mod=mod -m -modfile="versions/${file##*/}" -f '{{.Version}}' "$module@${version%.*}")
  echo "$file: $module $version, newest $newest"
  if [ "$newest" != "$version" ]; then status=1; fi
done < <(git ls-files -z '*/versions/*.mod')
exit "$status"
